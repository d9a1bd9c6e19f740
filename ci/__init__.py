"""Commands for people and machines that keep the suite: `python -m ci`."""
