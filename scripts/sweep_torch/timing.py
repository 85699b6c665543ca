"""Times of functions of tensors on a GPU: captured in CUDA graphs, operands rotated."""

import statistics

import torch

# As of crates/bench/src/networks/measure.rs: more than the largest last-level caches.
WORKING_SET = 128 << 20
MOST_COPIES = 64
# Of torch.compile, in the order in which they are tried.
MODES = ("max-autotune-no-cudagraphs", "default")


def copies(inputs):
    """How many sets of operands exceed the caches."""
    each = sum(tensor.nbytes for tensor in inputs)
    return min(max(-(-WORKING_SET // each), 2), MOST_COPIES)


def capture(function, operands):
    """A CUDA graph that runs the function on each set of operands, one after the other."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            results = function(*operands[0])
    torch.cuda.current_stream().wait_stream(stream)
    if not all(torch.isfinite(result).all() for result in results):
        raise RuntimeError("results are not finite")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [function(*each) for each in operands]
    return graph, kept


def replay(function, operands, seconds):
    """Microseconds of one call: the median over replays."""
    graph, _kept = capture(function, operands)
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times, spent, warm = [], 0.0, 0.0
    while spent < seconds * 1e3 or len(times) < 3:
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        took = before.elapsed_time(after)
        if warm < 200.0:
            warm += took
            continue
        spent += took
        times.append(took * 1e3 / len(operands))
    return statistics.median(times), len(times)


def compiled(function, operands, seconds, modes):
    """The time of torch.compile, and the first mode that worked."""
    for mode in modes:
        torch._dynamo.reset()
        try:
            fused = torch.compile(function, dynamic=False, fullgraph=True, mode=mode)
            return replay(fused, operands, seconds), mode
        except Exception as exception:
            error = exception
    raise error


def measure(name, function, make_inputs, seconds, modes=MODES):
    """The row of a function: `eager_us`, `compiled_us`, and the faster of both as `median_us`."""
    row = {"name": name, "program": f"torch {torch.__version__}", "device": torch.cuda.get_device_name()}
    with torch.no_grad():
        try:
            first = make_inputs()
            operands = [first] + [make_inputs() for _ in range(copies(first) - 1)]
            row["instances"] = len(operands)
            row["eager_us"], row["runs"] = replay(function, operands, seconds)
            if modes:
                try:
                    (row["compiled_us"], _), row["mode"] = compiled(function, operands, seconds, modes)
                except Exception as exception:
                    row["compile_failed"] = f"{type(exception).__name__}: {exception}"[:200]
            row["median_us"] = min(row["eager_us"], row.get("compiled_us", row["eager_us"]))
        except Exception as exception:
            row["failed"] = f"{type(exception).__name__}: {exception}"[:200]
    torch.cuda.empty_cache()
    return row
