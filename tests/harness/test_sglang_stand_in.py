"""Each stand-in kernel of the SGLang CPU engine does what a plain model of its meaning says.

The models are written on Python lists; the stand-in runs on torch, in the engine's environment.
"""

import itertools
import json
import random
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fixtures.launch import environments

SHIM = Path(__file__).parents[2] / "fixtures" / "engines" / "sglang_cpu"
KERNELS = SHIM / "sgl_kernel" / "__init__.py"
PRESET = -7  # stands in an output where nothing is to be written

# Runs in the engine's Python: every call for every module, on fresh arguments; prints what they became.
DRIVER = """
import json, runpy, sys, torch

def tensor(value):
    return torch.tensor(value["data"], dtype=getattr(torch, value["dtype"]))

def call(function, arguments):
    made = {k: tensor(v) if isinstance(v, dict) else v for k, v in arguments.items() if k != "buffers"}
    buffers = [tensor(v) for v in arguments.get("buffers", ())]
    if buffers:
        made["data_ptrs"] = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64)
        made["strides"] = torch.tensor([b.stride(0) * b.element_size() for b in buffers])
    try:
        function(**made)
    except Exception as error:
        return repr(error)
    after = {k: v.tolist() for k, v in made.items() if torch.is_tensor(v)}
    return after | {"buffers": [b.tolist() for b in buffers]}

work = json.load(sys.stdin)
modules = [runpy.run_path(path) for path in work["modules"]]
json.dump([[call(m[name], arguments) for name, arguments in work["calls"]] for m in modules], sys.stdout)
"""


@dataclass(frozen=True)
class Case:
    """One call: the arguments by name, and what some of them are to hold afterwards."""

    function: str
    arguments: dict[str, object]
    expected: dict[str, list]


@dataclass
class Node:
    """A token of a draft tree. `children` are in the order in which they are tried."""

    token: int
    parent: "Node | None" = None
    index: int = -1  # among all drafted tokens
    children: list["Node"] = field(default_factory=list)

    def line(self):
        """Return the path from the root to this node."""
        return [*(self.parent.line() if self.parent else []), self]


def ints(data, dtype="int64"):
    return {"data": data, "dtype": dtype}


def pool(rng, *, reach):
    """Return arguments of a request pool of random slots, and (row, first, last) of each request."""
    rows = rng.sample(range(6), rng.randint(1, 4))
    slots = [rng.sample(range(10, 500), 20) for _ in range(6)]
    spans = [(row, first := rng.randint(0, 9), first + (reach or rng.randint(0, 10))) for row in rows]
    arguments = {
        "req_pool_indices": ints(rows),
        "req_to_token": ints(slots, "int32"),
        "pool_len": 20,
    }
    return slots, spans, arguments


def copy_rows(rng):
    rows, buffers = 12, []
    for dtype, shape in (("float32", 3), ("uint8", 5), ("int64", 2)):
        data = [[rng.randint(0, 255) for _ in range(shape)] for _ in range(rows)]
        buffers.append({"data": data, "dtype": dtype})
    count = rng.randint(0, 8)
    targets, sources = rng.sample(range(rows), count), rng.choices(range(rows), k=count)
    after = []
    for before in (b["data"] for b in buffers):
        moved = dict(zip(targets, (before[s] for s in sources), strict=True))
        after.append([moved.get(row, before[row]) for row in range(rows)])
    arguments = {"buffers": buffers, "tgt_loc": ints(targets), "src_loc": ints(sources)}
    return Case("copy_all_layer_kv_cache_cpu", arguments, {"buffers": after})


def enter_slots(rng):
    slots, spans, arguments = pool(rng, reach=0)
    fresh = [[rng.randint(500, 999) for _ in range(first, last)] for _, first, last in spans]
    after = [list(row) for row in slots]
    for (row, first, last), new in zip(spans, fresh, strict=True):
        after[row] = after[row][:first] + new + after[row][last:]
    arguments |= {"start": ints([s[1] for s in spans]), "end": ints([s[2] for s in spans])}
    arguments["out_cache_loc"] = ints(list(itertools.chain(*fresh)))
    return Case("assign_req_to_token_pool_cpu", arguments, {"req_to_token": after})


def read_slots(rng):
    slots, spans, arguments = pool(rng, reach=0)
    wanted = [slots[row][i] for row, first, last in spans for i in range(first, last)]
    arguments |= {"start": ints([s[1] for s in spans]), "end": ints([s[2] for s in spans])}
    arguments["out_cache_loc"] = ints([PRESET] * (len(wanted) + 2))
    return Case("assign_extend_cache_locs_cpu", arguments, {"out_cache_loc": [*wanted, PRESET, PRESET]})


def read_draft_slots(rng):
    topk, steps = rng.randint(1, 2), rng.randint(1, 4)
    slots, spans, arguments = pool(rng, reach=topk * steps)
    wanted = [slots[row][i] for row, first, last in spans for i in range(first, last)]
    arguments |= {"seq_lens": ints([s[1] for s in spans]), "topk": topk, "num_steps": steps}
    arguments["out_cache_loc"] = ints([PRESET] * len(wanted))
    return Case("assign_draft_cache_locs_contiguous_cpu", arguments, {"out_cache_loc": wanted})


def pick_bonus(rng):
    requests, width = rng.randint(1, 5), rng.randint(1, 5)
    accepted = [[rng.randint(0, 99) for _ in range(rng.randint(1, width))] for _ in range(requests)]
    padded = [tokens + [PRESET] * (width - len(tokens)) for tokens in accepted]
    arguments = {
        "accept_tokens": ints(list(itertools.chain(*padded)), "int32"),
        "accept_lens": ints([len(tokens) for tokens in accepted], "int32"),
        "bonus_tokens": ints([PRESET] * requests, "int32"),
        "accept_stride": width,
    }
    return Case("fill_bonus_tokens_cpu", arguments, {"bonus_tokens": [t[-1] for t in accepted]})


def pack_accepted(rng):
    nodes = rng.randint(1, 12)
    slots = rng.sample(range(10, 500), nodes)
    index = [i if rng.random() < 0.6 else -1 for i in range(nodes)]
    packed = [slots[i] for i in index if i != -1]
    arguments = {
        "accept_index": ints(index),
        "out_cache_loc": ints(slots),
        "accept_out_cache_loc": ints([PRESET] * nodes),
    }
    expected = packed + [PRESET] * (nodes - len(packed))
    return Case("fill_accept_out_cache_loc_cpu", arguments, {"accept_out_cache_loc": expected})


def rotate(rng):
    texts = [
        [rng.randint(0, 99) for _ in range(rng.choice((0, 1, 2, 3, 7)))] for _ in range(rng.randint(1, 4))
    ]
    new = [rng.randint(100, 199) for _ in texts]
    starts = [sum(map(len, texts[:i])) for i in range(len(texts))]
    chosen = rng.random() < 0.5 and all(texts)
    places = [rng.randrange(len(t)) if chosen else len(t) - 1 for t in texts]
    after = []
    for text, token, place in zip(texts, new, places, strict=True):
        shifted = text[1:] + text[-1:]
        after += [*shifted[:place], token, *shifted[place + 1 :]] if text else []
    arguments = {
        "input_ids": ints(list(itertools.chain(*texts))),
        "start_loc": ints(starts),
        "seq_lens": ints([len(t) for t in texts]),
        "topk_index": ints([[token] for token in new]),
    }
    if chosen:
        arguments["select_index"] = ints([s + p for s, p in zip(starts, places, strict=True)])
    return Case("rotate_input_ids_cpu", arguments, {"input_ids": after})


def draft(rng, topk, depth, size):
    """Draft a tree as the engine does: `topk` children of each front node, `topk` of them the next front.

    Returns the kept nodes (root first, then in drafting order) and the engine's parent list.
    """
    root = Node(rng.randint(0, 3))
    front, drafted, parents = [root], [], [-1]
    for step in range(depth):
        new = [Node(rng.randint(0, 3), parent) for parent in front for _ in range(topk)]
        for node in new:
            node.index = len(drafted)
            drafted.append(node)
        front = rng.sample(new, topk)
        if step < depth - 1:
            parents += [node.index for node in front]
    kept = [root]
    while len(kept) < size:
        kept.append(rng.choice([n for n in drafted if n.parent in kept and n not in kept]))
    kept[1:] = sorted(kept[1:], key=lambda node: node.index)
    for node in kept[1:]:
        node.parent.children.append(node)
    return kept, parents if depth > 1 else []


def trees(rng):
    """Return random trees of one shape for a batch; half of them chains."""
    topk, depth = (1, rng.randint(1, 5)) if rng.random() < 0.5 else (rng.randint(2, 3), rng.randint(1, 3))
    size = 1 + (depth if topk == 1 else rng.randint(1, topk * depth))
    return topk, depth, size, [draft(rng, topk, depth, size) for _ in range(rng.randint(1, 3))]


def links(batch):
    """Return first child, next sibling and flat index of every node, -1 for none."""
    child, sibling, flat = [], [], []
    for number, nodes in enumerate(batch):
        child.append([nodes.index(n.children[0]) if n.children else -1 for n in nodes])
        after = {a: b for n in nodes for a, b in itertools.pairwise(map(nodes.index, n.children))}
        sibling.append([after.get(i, -1) for i in range(len(nodes))])
        flat.append([number * len(nodes) + i for i in range(len(nodes))])
    return child, sibling, flat


def build_tree(rng):
    topk, depth, size, drafted = trees(rng)
    batch, lengths = [nodes for nodes, _ in drafted], [rng.randint(0, 6) for _ in drafted]
    mode, mask, positions = rng.randint(0, 1), [], []
    for nodes, length in zip(batch, lengths, strict=True):
        for node in nodes:
            mask += [True] * (length if mode == 0 else 0) + [other in node.line() for other in nodes]
            positions.append(length + len(node.line()) - 1)
    child, sibling, flat = links(batch)
    empty = [[-1] * size for _ in batch]
    arguments = {
        "parent_list": ints([parents for _, parents in drafted]),
        "selected_index": ints([[n.index for n in nodes[1:]] for nodes in batch]),
        "seq_lens": ints(lengths),
        "tree_mask": {"data": [True] * len(mask), "dtype": "bool"},
        "positions": ints([PRESET] * len(positions)),
        "retrieve_index": ints(empty),
        "retrieve_next_token": ints(empty),
        "retrieve_next_sibling": ints(empty),
        "topk": topk,
        "depth": depth,
        "draft_token_num": size,
        "tree_mask_mode": mode,
    }
    expected = {"tree_mask": mask, "positions": positions, "retrieve_index": flat}
    expected |= {"retrieve_next_token": child, "retrieve_next_sibling": sibling}
    return Case("build_tree_kernel_efficient_cpu", arguments, expected)


def accept(nodes, choices):
    """Return the accepted line of nodes: down while a child is what the target chooses after its parent."""
    line = [nodes[0]]
    while follow := [n for n in line[-1].children if n.token == choices[nodes.index(line[-1])]]:
        line.append(follow[0])
    return [nodes.index(n) for n in line]


def accept_chain(nodes, choices):
    """Return the same for a chain: the longest prefix of drafts that equals the target's choices."""
    drafts = [n.token for n in nodes[1:]]
    agreed = next((i for i, (d, c) in enumerate(zip(drafts, choices, strict=False)) if d != c), len(drafts))
    return list(range(agreed + 1))


def verify(rng):
    topk, depth, size, drafted = trees(rng)
    batch = [nodes for nodes, _ in drafted]
    choices = [[rng.randint(0, 3) for _ in nodes] for nodes in batch]
    for nodes, chosen in zip(batch, choices, strict=True):  # often follow the drafts, or little is accepted
        for i, node in enumerate(nodes):
            if node.children and rng.random() < 0.7:
                chosen[i] = rng.choice(node.children).token
    judge = accept_chain if topk == 1 else accept
    lines = [judge(nodes, chosen) for nodes, chosen in zip(batch, choices, strict=True)]
    predicts = [PRESET] * (size * len(batch))
    for number, line in enumerate(lines):
        for i in line:
            predicts[number * size + i] = choices[number][i]
    child, sibling, flat = links(batch)
    arguments = {
        "predicts": ints([PRESET] * len(predicts), "int32"),
        "accept_index": ints([[-1] * (depth + 1) for _ in batch], "int32"),
        "accept_token_num": ints([PRESET] * len(batch), "int32"),
        "candidates": ints([[n.token for n in nodes] for nodes in batch]),
        "retrive_index": ints(flat),
        "retrive_next_token": ints(child),
        "retrive_next_sibling": ints(sibling),
        "target_predict": ints(choices),
    }
    index = [
        [number * size + i for i in line] + [-1] * (depth + 1 - len(line))
        for number, line in enumerate(lines)
    ]
    expected = {"predicts": predicts, "accept_index": index}
    expected["accept_token_num"] = [len(line) - 1 for line in lines]
    return Case("verify_tree_greedy_cpu", arguments, expected)


MODELS = (
    copy_rows,
    enter_slots,
    read_slots,
    read_draft_slots,
    pick_bonus,
    pack_accepted,
    rotate,
    build_tree,
    verify,
)

# One mistake each: its name, the function, a piece of the stand-in's text, and what stands there instead.
MISTAKES = (
    (
        "rows read late",
        "copy_all_layer_kv_cache_cpu",
        "in rows:",
        "in ((t, ctypes.string_at(base + s * size, size)) for t, s in moves):",
    ),
    (
        "rows of the wrong buffer size",
        "copy_all_layer_kv_cache_cpu",
        "base + target * size, row",
        "base + target, row",
    ),
    ("all slots to the first request", "assign_req_to_token_pool_cpu", "offset += last - first", "pass"),
    ("one slot late", "assign_req_to_token_pool_cpu", "[row, first:last] =", "[row, first + 1 : last + 1] ="),
    ("one slot early", "assign_extend_cache_locs_cpu", "[row, first:last]", "[row, first - 1 : last - 1]"),
    (
        "the last token's slot again",
        "assign_draft_cache_locs_contiguous_cpu",
        "length : length +",
        "length - 1 : length - 1 +",
    ),
    ("the token after the bonus", "fill_bonus_tokens_cpu", "accept_lens.long() - 1", "accept_lens.long()"),
    ("the first node forgotten", "fill_accept_out_cache_loc_cpu", "accepted > -1", "accepted > 0"),
    ("not packed", "fill_accept_out_cache_loc_cpu", "[: accepted.numel()] =", "[accepted] ="),
    ("not shifted", "rotate_input_ids_cpu", "[start + 1 : stop].clone()", "[start : stop - 1].clone()"),
    ("always the last place", "rotate_input_ids_cpu", "if ends is None else ends[i]", ""),
    ("an ancestor hidden", "build_tree_kernel_efficient_cpu", "while ancestor > 0:", "while ancestor > 1:"),
    (
        "the root counted as a step",
        "build_tree_kernel_efficient_cpu",
        "= length + steps",
        "= length + steps + 1",
    ),
    ("siblings backwards", "build_tree_kernel_efficient_cpu", "range(nodes - 1, 0, -1)", "range(1, nodes)"),
    (
        "everyone a child of the root",
        "build_tree_kernel_efficient_cpu",
        "0 if entry == 0 else",
        "0 if True else",
    ),
    ("the prefix overwritten", "build_tree_kernel_efficient_cpu", "[:, width - nodes :]", "[:, :nodes]"),
    ("one draft too many", "verify_tree_greedy_cpu", "[request] = accepted", "[request] = accepted + 1"),
    ("every draft accepted", "verify_tree_greedy_cpu", "!= target[last]:", "!= drafts[request][node]:"),
    ("siblings not tried", "verify_tree_greedy_cpu", "node = sibling[request][node]", "node = -1"),
    (
        "a draft compared with its own successor",
        "verify_tree_greedy_cpu",
        "!= target[last]:",
        "!= target[flat[request][node]]:",
    ),
    (
        "one draft too few",
        "verify_tree_greedy_cpu",
        "range(1, accept_index.shape[1])",
        "range(2, accept_index.shape[1])",
    ),
    (
        "no bonus token",
        "verify_tree_greedy_cpu",
        "= accepted\n        predicts[last] = target[last]",
        "= accepted",
    ),
)


@pytest.fixture(scope="module")
def python():
    """Python of SGLang's own environment, where torch is."""
    return environments.ensure("sglang", "0.5.20").python


@pytest.fixture(scope="module")
def cases():
    rng = random.Random(20)
    return [model(rng) for model in MODELS for _ in range(60)]


def run(python, code, *, path=(), given=""):
    environment = {"PATH": "", "PYTHONPATH": ":".join(map(str, path)), "SGLANG_USE_CPU_ENGINE": "1"}
    command = [python, "-c", code]
    return subprocess.run(command, input=given, capture_output=True, text=True, env=environment, check=False)


def disagreements(python, modules, cases):
    """Return, for each module (a file), the functions that leave something else than their model says."""
    calls = [(case.function, case.arguments) for case in cases]
    work = json.dumps({"modules": [str(module) for module in modules], "calls": calls})
    done = run(python, DRIVER, given=work)
    assert done.returncode == 0, done.stderr
    return [
        {c.function for c, got in zip(cases, results, strict=True) if not agrees(c, got)}
        for results in json.loads(done.stdout)
    ]


def agrees(case, got):
    return isinstance(got, dict) and all(got[name] == value for name, value in case.expected.items())


def test_every_function_has_a_model(cases):
    assert set(re.findall(r"^def (\w+)", KERNELS.read_text(), re.MULTILINE)) == {c.function for c in cases}


def test_the_stand_in_agrees_with_the_models_and_every_mistake_is_noticed(python, cases, tmp_path):
    source, modules = KERNELS.read_text(), [KERNELS]
    for number, (name, function, piece, wrong) in enumerate(MISTAKES):
        block = re.search(rf"^def {function}\b.*?(?=^def |\Z)", source, re.MULTILINE | re.DOTALL).group()
        assert block.count(piece) == 1, f"{name}: {piece!r} is not once in {function}"
        modules.append(tmp_path / f"{number}.py")
        modules[-1].write_text(source.replace(block, block.replace(piece, wrong)))
    right, *wrong = disagreements(python, modules, cases)
    assert right == set()
    assert {name: found for (name, *_), found in zip(MISTAKES, wrong, strict=True)} == {
        name: {function} for name, function, *_ in MISTAKES
    }


def test_torchvision_imports_only_with_the_declared_operators(python):
    bare = run(python, "import torchvision")
    assert "operator torchvision::nms does not exist" in bare.stderr
    helped = run(python, "import torchvision", path=[SHIM])
    assert (helped.returncode, helped.stderr) == (0, "")


def test_the_engine_finds_every_name_that_it_imports(python):
    kernels = (
        "kvcache.cache_move",
        "speculative.multi_layer_eagle",
        "speculative.eagle",
        "speculative.cache_locs",
    )
    users = [f"sglang.kernels.ops.{name}" for name in kernels]
    users += [f"sglang.srt.{name}" for name in ("mem_cache.allocation", "speculative.eagle_worker_common")]
    done = run(python, f"import {', '.join(users)}", path=[SHIM])
    assert done.returncode == 0, done.stderr
