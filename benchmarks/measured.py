"""Tables of what the scripts of this folder measured, made from `results/NAME.json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from catchment.report.showing import human_bytes

Record = dict[str, Any]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def engine(measured: Record) -> str:
    """The engine beside a bare loop."""
    resnet8 = measured["resnet8"]
    seconds, ratio = resnet8["round_s"], resnet8["over_bare"]
    one, two = ratio["1 worker, 1 thread"], ratio["2 workers, 2 threads"]
    return markdown(
        ["ResNet-8, 8 clients x 256 images of 32x32", "bare loop, s per round", "Catchment, s per round", "ratio"],
        [
            ["one core", f"{seconds['bare, 1 thread']:.2f}", f"{seconds['catchment, 1 worker']:.2f}", f"{one:.2f}"],
            ["two cores", f"{seconds['bare, 2 threads']:.2f}", f"{seconds['catchment, 2 workers']:.2f}", f"{two:.2f}"],
        ],
    )


def registered(measured: Record) -> str:
    """Clients that are registered and do not take part."""
    head = ["registered clients", "start, CPU s", "memory after it, MB", "peak, MB", "round, CPU s",
            "checkpoint, CPU ms", "report, CPU s", "report, MB"]  # fmt: skip
    rows = [
        [clients, f"{m['start_s']:.1f}", f"{m['start_mb']:,.0f}", f"{m['peak_mb']:,.0f}", f"{m['round_s']:.2f}",
         f"{1000 * m['checkpoint_s']:.1f}", f"{m['report_s']:.1f}", f"{m['report_mb']:.2f}"]
        for clients, m in measured.items()
    ]  # fmt: skip
    return markdown(head, rows)


def states(measured: Record) -> str:
    """Clients that keep models of their own."""
    head = ["registered clients", "that took part", "states in checkpoints, MB", "memory before, MB", "peak, MB",
            "round, CPU s", "checkpoint, CPU s, median", "slowest"]  # fmt: skip
    rows = [
        [clients, f"{m['asked']:,}", f"{m['checkpoints_mb']:,.0f}", f"{m['start_mb']:,.0f}",
         f"{m['peak_mb']:,.0f}", f"{m['round_s']:.1f}", f"{m['checkpoint_s']:.2f}", f"{max(m['checkpoints_s']):.2f}"]
        for clients, m in measured.items()
    ]  # fmt: skip
    return markdown(head, rows)


def states_fedgkt(measured: Record) -> str:
    """Clients that keep models of their own, and of whom the server keeps logits."""
    head = ["registered clients", "that took part", "states in checkpoints, MB", "memory before, MB", "peak, MB",
            "round, CPU s", "first checkpoint, CPU s", "last"]  # fmt: skip
    rows = [
        [clients, f"{m['asked']:,}", f"{m['checkpoints_mb']:,.0f}", f"{m['start_mb']:,.0f}",
         f"{m['peak_mb']:,.0f}", f"{m['round_s']:.1f}", *(f"{m['checkpoints_s'][i]:.2f}" for i in (0, -1))]
        for clients, m in measured.items()
    ]  # fmt: skip
    return markdown(head, rows)


def long(measured: Record) -> str:
    """Runs of many rounds."""
    head = ["10 of 1,000 clients, a checkpoint per round", "first tenth", "last tenth"]
    (m,) = measured.values()
    rows = []
    for name, key, unit in (
        ("memory, MB", "memory_mb", 1),
        ("round, CPU ms", "rounds_s", 1000),
        ("checkpoint, CPU ms", "checkpoints_s", 1000),
    ):
        tenth = max(1, len(m[key]) // 10)
        ends = median(m[key][:tenth]), median(m[key][-tenth:])
        rows.append([name, *(f"{unit * value:,.1f}" for value in ends)])
    rows.append(["report of the whole run, MB", "", f"{m['report_mb']:.1f}"])
    return markdown(head, rows)


def scale(measured: Record) -> str:
    """What a million phones would need."""
    head = [f"{measured['active']:,} devices in a round of an hour", "up, MB each", "down, MB each", "up, Gbit/s",
            "down, Gbit/s", "links", "features on disk, GB", "one GPU, s per epoch"]  # fmt: skip
    rows = []
    for name, found in measured["jobs"].items():
        small, large = found["small"], found["large"]
        links = f"{math.ceil(large['links'])} to {math.ceil(small['links'])}"
        sent = [f"{small['up_bytes'] / 1e6:.2f}", f"{small['down_bytes'] / 1e6:.3g}"]
        rates = [f"{small[key] / 1e3:.2f}" for key in ("up_mbit", "down_mbit")]
        rows.append([name, *sent, *rates, links, f"{small['spool_gb']:,.0f}", f"{small['gpu_s']:,.0f}"])
    return markdown(head, rows)


def peers(measured: Record) -> str:
    """The same FedAvg jobs in several systems."""
    parts = []
    for job, title in (("J1", "J1, many tiny"), ("J2", "J2, few small CNNs")):
        rows = []
        for name, row in measured["jobs"][job]["summary"].items():
            overhead = f"{row['turn_overhead_ms']:+.2f}" if "turn_overhead_ms" in row else ""
            rows.append(
                [name, f"{row['turn_ms']:.2f}", overhead, f"{row['fixed_s']:.1f}", f"{row['peak_rss_mb']:.0f}",
                 f"{row['weights_vs_bare']:.0e}"]
            )  # fmt: skip
        head = [title, "ms per client turn", "over bare", "fixed s", "peak RSS MB", "weights vs bare"]
        parts.append(markdown(head, rows))
    return "\n\n".join(parts)


def turn(measured: Record) -> str:
    """What a turn does beyond a bare loop, by leaving parts out."""
    spent = measured["cpu_us_per_turn"]
    rows = [
        [name, f"{us:.0f}", f"{us - spent['bare']:+.0f}", "" if name == "bare" else f"{us - spent['catchment']:+.0f}"]
        for name, us in spent.items()
    ]
    return markdown(["J1, many tiny", "CPU µs per client turn", "over bare", "over catchment"], rows)


def edge_cost(measured: Record) -> str:
    """Edge models beside the whole models of FedAvg."""
    models = measured["models"]
    edge, over = models["resnet8"], "times ResNet-8"
    rows = []
    for name, model in models.items():
        counted = [(f"{model[key] / unit:,.{digits}f}", f"{model[key] / edge[key]:.1f}")
                   for key, unit, digits in (("parameters", 1, 0), ("macs", 1e6, 1))]  # fmt: skip
        timed = f"{model['batch_ms']:.0f}", f"{model['times_resnet8']:.1f}"
        rows.append([name.replace("resnet", "ResNet-"), *counted[0], *counted[1], *timed])
    head = [f"3x32x32, {measured['classes']} classes", "parameters", over, "million MACs per image", over,
            f"CPU ms, {measured['batch']} images", over]  # fmt: skip
    return markdown(head, rows)


def newcomer(measured: list[Record]) -> str:
    """What a newcomer does, and how long each step takes."""
    rows = [
        [step["what"], f"`{step['command']}`", f"[{step['page']}]({pages_of(step['page'])})", f"{step['seconds']:.0f}"]
        for step in measured
    ]
    rows.append(["in all", "", "", f"{sum(step['seconds'] for step in measured):.0f}"])
    return markdown(["step", "command", "page", "s"], rows)


def pages_of(name: str) -> str:
    """Where a page is, from another page of `docs`."""
    return "../README.md" if name == "README" else f"{name}.md"


def niid_bare(measured: Record) -> str:
    """A cell of Flower's table in plain PyTorch."""
    rows = [[f"seed {seed}", f"{100 * m['best']:.1f}", f"{100 * m['last']:.1f}"] for seed, m in measured.items()]
    return markdown(["FedAvg in plain PyTorch, Fashion-MNIST, IID", "best round, %", "last round, %"], rows)


def raw_images(measured: Record) -> str:
    """Bytes of images as they are."""
    rows = [[name, human_bytes(row["uint8"]), human_bytes(row["png"])] for name, row in measured.items()]
    return markdown(["CIFAR-10", "uint8 pixels", "PNG files"], rows)


def fedgkt(measured: Record) -> str:
    """A round of FedGKT beside a bare loop."""
    seconds = measured["round_s"]
    head = [f"FedGKT, {measured['clients']} clients x {measured['samples']} images of 32x32, ResNet-8 and ResNet-19",
            "bare loop, CPU s per round", "Catchment, CPU s per round", "ratio"]  # fmt: skip
    return markdown(
        head, [["one core", f"{seconds['bare']:.2f}", f"{seconds['engine']:.2f}", f"{measured['over_bare']:.2f}"]]
    )


def fedzkt(measured: Record) -> str:
    """FedZKT's server beside a plain loop, and teachers in one call beside a loop."""
    rows = [
        [f"generator of width {row['width']}", *(f"{row['iteration_s'][way]:.2f}" for way in ("plain", "catchment")),
         f"{row['plain_over_catchment']:.2f}"]
        for row in measured["server"]
    ]  # fmt: skip
    head = [f"{len(measured['devices'])} devices, 28x28, batches of {measured['batch']}",
            "plain loop, CPU s per iteration", "Catchment, CPU s per iteration", "times faster"]  # fmt: skip
    return markdown(head, rows)


def spool(measured: Record) -> str:
    """The server's memory for all uploads of a round."""
    gib, ways = 2**30, measured["ways"]
    head = [f"{measured['clients']} clients x {measured['samples']:,} samples", "uploaded, GiB", "at the start, GiB",
            "peak, GiB", "above start, GiB", "CPU s"]  # fmt: skip
    rows = [
        [way, *(f"{row[key] / gib:.2f}" for key in ("uploaded", "start", "peak", "above_start")),
         f"{row['cpu_seconds']:.0f}"]
        for way, row in ways.items()
    ]  # fmt: skip
    return markdown(head, rows)


def flower(measured: Record) -> str:
    """Round trips, throughput and memory of processes that speak over Flower."""
    processes = ["SuperLink", "server routine", "client"]
    head = [
        "one client on loopback",
        "empty request, s",
        "MB",
        "up, MB/s",
        "down, MB/s",
        *(f"{p}, MB" for p in processes),
    ]
    rows = [
        [way, f"{row['empty_seconds']:.2f}", size, f"{row['up_MB_per_second']:.1f}", f"{row['down_MB_per_second']:.1f}",
         *(f"{row['peak_MB'][p]:,}" if p in row["peak_MB"] else "" for p in processes)]
        for way, sizes in measured["ways"].items()
        for size, row in sizes.items()
    ]  # fmt: skip
    device = measured["device"]
    memory = markdown(
        ["a client process on a device", "at rest, MB", "in training, MB"],
        [
            [
                f"{device['model']}, {device['images']} images of its own, batches of {device['batch']}",
                f"{device['rest_MB']}",
                f"{device['training_MB']}",
            ]
        ],
    )
    return f"{markdown(head, rows)}\n\n{memory}"


def namespaces(measured: Record) -> str:
    """FedGKT over slow and lossy lines."""
    m = measured
    cells = {
        "clients": m["clients"],
        "delay, ms": m["delay_ms"],
        "loss": f"{m['loss']:.0%}",
        "Mbit/s": m["rate_mbit"],
        "rounds": m["rounds"],
        "accuracy": f"{100 * m['accuracy']:.1f}",
        "lost replies": m["lost"],
        "payload, MB": f"{sum(m['payload_bytes'].values()) / 1e6:.1f}",
        "on the lines, MB": f"{m['bytes_on_the_lines'] / 1e6:.1f}",
        "packets lost": f"{m['packets_lost']:,}",
        "seconds": f"{m['seconds']:.0f}",
    }
    return markdown(list(cells), [[str(cell) for cell in cells.values()]])


def browser(measured: Record) -> str:
    """What was wrong with pages in a browser."""
    rows = [
        [kind, str(found["pages"]), str(found["views"]),
         *(str(sum(found.get(name, 0) for name in names)) for names in (["console", "errors"], ["elsewhere"],
                                                                        ["failed"], ["wider"]))]
        for kind, found in measured["kinds"].items()
    ]  # fmt: skip
    head = [f"Chromium {measured['chromium']}", "pages", "views", "errors and warnings", "requests elsewhere",
            "failed requests", "wider than the screen"]  # fmt: skip
    return markdown(head, rows)


def device(measured: Record) -> str:
    """What an install takes on the disk."""
    rows = []
    for extras, row in measured["extras"].items():
        others = [f"{name} {size:.0f}" for name, size in row["mb"].items() if name not in ("torch", "others")]
        rows.append(
            [f"`catchment-fl[{extras}]`", f"{row['total_mb']:,.0f}", f"{row['mb']['torch']:.0f}",
             f"{row['without_torch_mb']:.0f}", str(row["packages"]), ", ".join(others[:4])]
        )  # fmt: skip
    head = [f"Python {measured['python']}, {measured['machine']}", "MB", "PyTorch", "all else", "packages", "largest"]
    return markdown(head, rows)


def transmission(measured: Record) -> str:
    """Bytes and time of a round of each method, beside the paper's: a table for each model."""
    link, tables = measured["link"], []
    for model, rows in measured["models"].items():
        whole = rows["FedAvg"]["up"]
        head = [f"{model}, {measured['clients']} clients, one round", "parameters", "up, MB", "against FedAvg, %",
                "down, MB", "s, 1 Mbit/s", "s, 10 Mbit/s", "s, 100 Mbit/s", "paper, MB"]  # fmt: skip
        lines = [
            [name, f"{row['parameters']:,}", f"{row['up'] / 1e6:.2f}", f"{100 * (row['up'] / whole - 1):+.2f}",
             f"{row['down'] / 1e6:.2f}", *(f"{row['seconds'] * link / speed:,.2f}" for speed in (1, 10, 100)),
             f"{row['paper_mb']:.2f}" if row["paper_mb"] else ""]
            for name, row in rows.items()
        ]  # fmt: skip
        tables.append(markdown(head, lines))
    return "\n\n".join(tables)


def kills(measured: Record) -> str:
    """Runs that were killed again and again."""
    names = {"inprocess": "in one process", "flower": "over Flower: server, clients, or all of them"}
    head = ["kills (SIGKILL) at random moments", "experiments", "runs", "kills", "results that differ"]
    rows = [
        [names[engine], str(len(m["cases"])), str(m["runs"]), f"{m['kills']:,}", str(len(m["unequal"]))]
        for engine, m in measured.items()
    ]
    return markdown(head, rows)


def spoiled(measured: Record) -> str:
    """Replies of one client that were spoiled, one thing at a time."""
    names = {"inprocess": "in one process", "flower": "over the Flower transport"}
    outcomes = ("refused", "failed", "lost", "taken")
    head = ["spoiled replies", "worlds", "replies", *outcomes, "runs ended or absurd results", "largest memory"]
    rows = []
    for engine, m in measured.items():
        counts = [sum(world["outcomes"].get(what, 0) for world in m["worlds"].values()) for what in outcomes]
        rows.append(
            [names[engine], str(len(m["worlds"])), f"{m['spoiled']:,}", *(f"{n:,}" for n in counts), str(m["harm"]),
             f"{m['largest_memory']:.2f} of honest"]
        )  # fmt: skip
    return markdown(head, rows)


def mutations(measured: Record) -> str:
    """Messages that were mutated."""
    m = measured["messages"]
    head = ["mutated messages", "kinds of mutation", "refused", "taken", "escaped", "memory per 1,000, MB"]
    counts = [sum(kind.get(what, 0) for kind in m["mutations"].values()) for what in ("refused", "taken")]
    cells = [f"{m['read']:,}", str(len(m["mutations"])), *(f"{n:,}" for n in counts), str(m["escaped"])]
    return markdown(head, [[*cells, f"{m['most_memory_MB']:.1f}"]])


def combinations(measured: Record) -> str:
    """Random experiments."""
    m = measured["combinations"]
    head = ["random experiments", "refused by `check`", "tried", "worlds", "runs", "minutes", "with something wrong"]
    cells = [f"{n:,}" for n in (m["drawn"], m["refused"], m["ran"] + m["ended"], len(m["worlds"]), m["runs"])]
    return markdown(head, [[*cells, f"{m['minutes']:.0f}", str(m["wrong"])]])


def advice(measured: Record) -> str:
    """The choice of short trials beside the best of all methods run in full."""
    head = ["data", "methods and rates", "choice", "its accuracy in full, %", "best", "its accuracy, %", "points lost",
            "trials, CPU s", "all in full, CPU s"]  # fmt: skip
    rows = [
        [name, str(m["of"]), m["choice"], f"{m['accuracy']:.1f}", m["best"], f"{m['best_accuracy']:.1f}",
         f"{m['lost']:.1f}", f"{m['seconds']:.0f}", f"{m['seconds_in_full']:.0f}"]
        for name, table in measured.items()
        if (m := table.get("outcome"))
    ]  # fmt: skip
    return markdown(head, rows)


def flower_tls(measured: Record) -> str:
    """One experiment over Flower with TLS and keys, and in one process."""
    names = {"flower": "over Flower, TLS and keys", "one-process": "in one process"}
    head = ["FedGKT, 4 clients, 3 rounds", "accuracy, %", "bytes up", "bytes down", "fingerprint", "seconds"]
    rows = [
        [names[way], f"{100 * m['accuracy']:.1f}", f"{m['bytes']['up']:,}", f"{m['bytes']['down']:,}",
         f"`{m['fingerprint']}`", f"{m['seconds']:.0f}"]
        for way, m in measured.items()
    ]  # fmt: skip
    return markdown(head, rows)


def studies(measured: Record) -> str:
    """Studies of four runs, with one and with two processes."""
    rows = [
        [name, *(f"{median(row['seconds'][f'--jobs {jobs}']):.0f}" for jobs in (1, 2)), f"{row['times_faster']:.2f}"]
        for name, row in measured["studies"].items()
    ]
    return markdown([f"four runs, {measured['cores']} cores", "`--jobs 1`, s", "`--jobs 2`, s", "times faster"], rows)


def ranks(measured: Record) -> str:
    """Ranks beside one process; what a message costs; steps that are shared, and what they send; two machines."""
    jobs, messages, machines = ("J1", "J2", "FedGKT"), measured["messages"], measured["machines"]
    cases = [f"{start}{count}{end}" for count in (2, 4) for start, end in (("1 process, ", " workers"), ("", " ranks"))]
    costs = markdown(
        ["seconds per round", *cases],
        [[job, *(f"{measured[job][case]['round_s']:.3g}" for case in cases)] for job in jobs],
    )
    requests = markdown(
        ["requests to another rank", "bytes there and back", "ms beyond their work, median", "least"],
        [[job, f"{messages[job]['bytes']:,.0f}", *(f"{messages[job][key]:.1f}" for key in ("ms", "least_ms"))]
         for job in jobs],
    )  # fmt: skip
    steps = markdown(
        ["8 steps of a ResNet-20 with 128 images", "seconds", "CPU seconds, all processes"],
        [
            [case, f"{row['round_s']:.2f}", f"{row['cpu_s']:.2f}"]
            for case, row in measured["steps"].items()
            if isinstance(row, dict)
        ],
    )
    sent, spent = measured["rows"]["bytes"], measured["rows"]["cpu_ms"]
    rows = markdown(
        ["a shared step of FedGKT, from rank 0 to the other of two", "bytes", "CPU ms of rank 0"],
        [
            ["features", f"{sent['rows']:,.0f}", f"{spent['rows']:.1f}"],
            ["weights", f"{sent['weights']:,.0f}", ""],
            ["gradients of outputs", f"{sent['gradients']:,.0f}", ""],
            ["all that a step takes", "", f"{spent['training']:.1f}"],
        ],
    )
    line = f"J2 on two machines, {machines['rate_mbit']:.0f} Mbit/s, {machines['delay_ms']:.0f} ms each way"
    same = "bit for bit" if machines["as_one_process"] else "no"
    cells = [same, f"{machines['bytes_on_the_line'] / 1e6:.1f}", f"{machines['cut_noticed_after_s']:.0f}"]
    apart = markdown(["", "as one process", "MB on the line", "s until a cut line is noticed"], [[line, *cells]])
    return "\n\n".join([costs, requests, steps, rows, apart])


MEASURED = {
    "advice": advice,
    "ranks": ranks,
    "studies": studies,
    "engine": engine,
    "registered": registered,
    "states": states,
    "states_fedgkt": states_fedgkt,
    "long": long,
    "scale": scale,
    "fedgkt": fedgkt,
    "fedzkt": fedzkt,
    "spool": spool,
    "peers": peers,
    "peers-checks": peers,
    "turn": turn,
    "edge_cost": edge_cost,
    "niid_bare": niid_bare,
    "raw_images": raw_images,
    "newcomer": newcomer,
    "flower": flower,
    "flower_tls": flower_tls,
    "device": device,
    "browser": browser,
    "namespaces": namespaces,
    "transmission": transmission,
    "kills": kills,
    "spoiled": spoiled,
    "mutations": mutations,
    "combinations": combinations,
}
