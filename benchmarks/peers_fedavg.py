"""How much time do federated-learning simulators add over bare PyTorch on CPU?

One file, two jobs, one function per system.  See README.md for the definitions
and for how to add a system.

    python peers_fedavg.py --out results.json
    python peers_fedavg.py --tiny --systems bare,pfl          # a quick check

The parent process only starts children, samples their memory and writes JSON.
Each measurement is a fresh child process, so imports and start-up are included.
"""

import argparse
import contextlib
import copy
import functools
import importlib.metadata
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEMS = {}


def system(name, threads=2, packages=()):
    """Register `fn(job, clock) -> state_dict` under a name."""

    def keep(fn):
        SYSTEMS[name] = SimpleNamespace(name=name, fn=fn, threads=threads, packages=packages)
        return fn

    return keep


# --------------------------------------------------------------------------- jobs


@dataclass
class Job:
    name: str
    clients: list  # [(x, y)] tensors, one pair per registered client
    test: tuple  # (x, y)
    make_model: object  # () -> nn.Module, same weights every time
    rounds: int
    cohort: int  # clients per round
    cohorts: list  # [round][i] -> client index
    batch: int
    lr: float
    epochs: int = 1


def _mlp():
    from torch import nn

    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def _cnn():
    from torch import nn

    def conv(a, b):
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b)]

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.body = nn.Sequential(*conv(width, width), nn.ReLU(), *conv(width, width))

        def forward(self, x):
            return (x + self.body(x)).relu()

    return nn.Sequential(
        *conv(3, 16),
        nn.ReLU(),
        Block(16),
        Block(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def _seeded(build, seed):
    import torch

    def make():
        torch.manual_seed(seed)
        return build()

    return make


@functools.cache
def get_job(name):
    """J1 = many tiny clients, J2 = few small CNNs; '-tiny' shrinks either."""
    import numpy as np
    import torch

    kind, _, variant = name.partition("-")
    tiny = variant == "tiny"
    rng = np.random.default_rng(20261115)

    if kind == "J1":
        from sklearn.datasets import load_digits

        total, cohort, rounds, per_client = (20, 4, 3, 16) if tiny else (1000, 100, 10, 16)
        digits = load_digits()
        order = rng.permutation(len(digits.target))
        x = digits.data[order]
        x = ((x - x.mean(0)) / (x.std(0) + 1e-6)).astype("float32")
        y = digits.target[order].astype("int64")
        test, (x, y) = (x[:360], y[:360]), (x[360:], y[360:])
        picks = rng.integers(0, len(y), size=(total, per_client))
        clients = [(x[p], y[p]) for p in picks]
        build, batch = _mlp, 16
    elif kind == "J2":
        total, rounds, per_client = (3, 3, 8) if tiny else (16, 3, 64)
        cohort = total
        # Random images; a weak class-dependent colour makes accuracy meaningful.
        tint = rng.normal(size=(10, 3, 1, 1)).astype("float32")

        def images(n):
            labels = rng.integers(0, 10, size=n)
            noise = rng.normal(size=(n, 3, 32, 32)).astype("float32")
            return noise + tint[labels], labels.astype("int64")

        clients = [images(per_client) for _ in range(total)]
        test = images(64 if tiny else 512)
        build, batch = _cnn, 64
    else:
        raise ValueError(name)

    cohorts = [
        list(range(total)) if cohort == total else [int(i) for i in rng.choice(total, size=cohort, replace=False)]
        for _ in range(rounds)
    ]
    pair = lambda p: (torch.from_numpy(p[0]), torch.from_numpy(p[1]))  # noqa: E731
    return Job(name, [pair(c) for c in clients], pair(test), _seeded(build, 7), rounds, cohort, cohorts, batch, lr=0.1)


def local_sgd(model, x, y, job):
    """The local training every system has to do."""
    import torch
    import torch.nn.functional as F

    opt = torch.optim.SGD(model.parameters(), lr=job.lr)
    model.train()
    for _ in range(job.epochs):
        for i in range(0, len(y), job.batch):
            opt.zero_grad()
            F.cross_entropy(model(x[i : i + job.batch]), y[i : i + job.batch]).backward()
            opt.step()


class Clock:
    """Marks on the system-wide monotonic clock."""

    def __init__(self):
        self.begin, self.ends = None, []

    def ready(self):  # call once, just before the first round
        self.begin = time.monotonic()

    def round_end(self):  # call after the global model of a round exists
        self.ends.append(time.monotonic())


# ------------------------------------------------------------------------ systems


def _bare(job, clock):
    import torch

    model = job.make_model()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    clock.ready()
    for members in job.cohorts:
        total = None
        for c in members:
            model.load_state_dict(state)
            local_sgd(model, *job.clients[c], job)
            with torch.no_grad():
                local = model.state_dict()
                if total is None:
                    total = {k: v.clone() for k, v in local.items()}
                else:
                    for k, v in local.items():
                        total[k] += v
        state = {k: (v / len(members)).to(v.dtype) for k, v in total.items()}
        clock.round_end()
    return state


@system("bare")
def bare(job, clock):
    return _bare(job, clock)


@system("bare-1thread", threads=1)
def bare_one_thread(job, clock):
    """Control: the same loop with one torch thread."""
    return _bare(job, clock)


@system("catchment", packages=("catchment",))
def catchment_inprocess(job, clock):
    """Catchment: the in-process engine as it comes, two workers; the job's cohorts, no run directory."""
    import numpy as np
    import torch
    from torch import nn

    import catchment
    from catchment.core.fleet import Fleet

    shape = (1, 8, 8) if job.clients[0][0].dim() == 2 else tuple(job.clients[0][0].shape[1:])
    sizes = [len(y) for _, y in job.clients]
    ends = np.cumsum(sizes)

    def data():
        x, y = (torch.cat(parts) for parts in zip(*job.clients))
        last = slice(-1, None)  # the engine evaluates after the last round; here the harness does
        return catchment.Dataset.of(
            x.reshape(-1, *shape), y, x[last].reshape(-1, *shape), y[last], classes=[str(c) for c in range(10)]
        )

    def model():
        return job.make_model() if len(shape) == 3 and shape[0] == 3 else nn.Sequential(nn.Flatten(), *job.make_model())

    def dealt(clients):
        return [np.arange(end - size, end) for size, end in zip(sizes, ends)]

    own = ModuleType("peers_catchment")
    own.data, own.model, own.dealt = data, model, dealt
    sys.modules["peers_catchment"] = own
    Fleet.cohort = lambda self: sorted(job.cohorts[self._round - 1])
    experiment = catchment.Experiment.from_dict(
        {
            "rounds": job.rounds,
            "workers": 2,
            "method": {"name": "fedavg", "client_epochs": job.epochs},
            "data": {
                "name": "peers_catchment:data",
                "clients": len(sizes),
                "partition": {"name": "peers_catchment:dealt"},
            },
            "models": {"client": "peers_catchment:model"},
            "evaluation": {"every": 10**9},
            "optimizer": {"client": {"name": "sgd", "lr": job.lr, "batch_size": job.batch}},
        }
    )
    final = {}
    Method = type(experiment.build_method())
    evaluate = Method.evaluate

    def keep_weights(self, server, state, fleet):
        final.update(state.weights)
        return evaluate(self, server, state, fleet)

    begin_round = Fleet.begin_round

    def ready_at_first(self, round, *more):
        if round == 1:
            clock.ready()
        begin_round(self, round, *more)

    Method.evaluate, Fleet.begin_round = keep_weights, ready_at_first
    catchment.run(experiment, observe=lambda record: clock.round_end())
    return dict(zip(job.make_model().state_dict(), final.values()))


@system("pfl", packages=("pfl",))
def pfl_research(job, clock):
    """pfl-research: SimulatedBackend + FederatedAveraging, one process."""
    import itertools

    import numpy as np
    import torch
    import torch.nn.functional as F
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Net(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def loss(self, x, y):
            self.train()
            return F.cross_entropy(self.net(x), y)

        @torch.no_grad()
        def metrics(self, x, y):
            self.eval()
            return {"loss": Weighted(F.cross_entropy(self.net(x), y, reduction="sum").item(), len(y))}

    class Marks(TrainingProcessCallback):
        def on_train_begin(self, *, model):
            clock.ready()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            clock.round_end()
            return False, Metrics()

    np.random.seed(0)
    net = job.make_model()
    wrapped = Net(net)
    users = [PyTorchTensorDataset(pair, user_id=str(i)) for i, pair in enumerate(job.clients)]
    order = itertools.chain.from_iterable(job.cohorts)
    data = FederatedDataset(users.__getitem__, lambda: next(order))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            wrapped,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(wrapped.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=job.epochs, local_learning_rate=job.lr, local_batch_size=job.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=job.batch),
        callbacks=[Marks()],
    )
    return net.state_dict()


def flower_client_app():
    """Built by reference inside every Ray worker."""
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(msg, context):
        torch.set_num_threads(1)
        job, model = flower_worker_state(msg.content["config"]["job"])
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        x, y = job.clients[int(context.node_config["partition-id"])]
        local_sgd(model, x, y, job)
        reply = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(y)}),
            }
        )
        return Message(content=reply, reply_to=msg)

    return app


@functools.cache
def flower_worker_state(name):
    job = get_job(name)
    return job, job.make_model()


class FlowerClient:
    """A ClientApp that travels to the workers by reference, not by value."""

    def __call__(self, message, context):
        return _flower_cached_app()(message, context)


@functools.cache
def _flower_cached_app():
    return flower_client_app()


@system("flower-ray", threads=1, packages=("flwr", "ray"))
def flower_ray(job, clock):
    """Flower: stock FedAvg strategy on the Ray simulation, 2 CPUs, 1 per client."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    out = {}
    app = ServerApp()

    @app.main()
    def main(grid, context):
        def mark(server_round, arrays):
            clock.round_end() if server_round else clock.ready()

        strategy = FedAvg(
            fraction_train=job.cohort / len(job.clients), fraction_evaluate=0.0, min_available_nodes=len(job.clients)
        )
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(job.make_model().state_dict()),
            num_rounds=job.rounds,
            train_config=ConfigRecord({"job": job.name}),
            evaluate_fn=mark,
        )
        out.update(result.arrays.to_torch_state_dict())

    run_simulation(
        server_app=app,
        client_app=FlowerClient(),
        num_supernodes=len(job.clients),
        backend_config={"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return out


@system("fedml-sp", packages=("fedml",))
def fedml_single_process(job, clock):
    """FedML: FedAvgAPI of the single-process simulator, without fedml.init()."""
    # The CPU torch and the plain torchvision wheel do not share compiled ops;
    # FedML imports torchvision but needs none of them here.
    name = "torchvision._meta_registrations"
    sys.modules.setdefault(name, ModuleType(name))
    import torch
    from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

    class Timed(FedAvgAPI):
        def _client_sampling(self, round_idx, *_):
            return job.cohorts[round_idx]

        def _aggregate(self, w_locals):
            self.final = super()._aggregate(w_locals)
            return self.final

        def _local_test_on_all_clients(self, round_idx):
            pass  # no evaluation in any system

    # mlops logging asks for the round after each one: the only per-round hook.
    from fedml import mlops
    from fedml.core import mlops as reporting

    mlops.log_round_info = lambda total, index: clock.ready() if index < 0 else clock.round_end()

    args = SimpleNamespace(
        client_num_in_total=len(job.clients),
        client_num_per_round=job.cohort,
        comm_round=job.rounds,
        epochs=job.epochs,
        batch_size=job.batch,
        client_optimizer="sgd",
        learning_rate=job.lr,
        weight_decay=0.0,
        frequency_of_the_test=10**9,
        dataset="bench",
        enable_wandb=False,
        using_mlops=False,
    )
    reporting.pre_setup(args)  # otherwise every event tries to reach a remote service
    batches = {
        i: [(x[j : j + job.batch], y[j : j + job.batch]) for j in range(0, len(y), job.batch)]
        for i, (x, y) in enumerate(job.clients)
    }
    sizes = {i: len(y) for i, (_, y) in enumerate(job.clients)}
    nobody = dict.fromkeys(batches)
    api = Timed(
        args, torch.device("cpu"), [sum(sizes.values()), 0, None, None, sizes, batches, nobody, 10], job.make_model()
    )

    # In 0.9.6 the first round starts from the *live* weights of the shared model,
    # so its clients train one after the other on each other's result.  Handing
    # out one copy, once, restores FedAvg and costs nothing measurable.
    trainer, original = api.model_trainer, api.model_trainer.get_model_params

    def copy_once():
        trainer.get_model_params = original
        return copy.deepcopy(original())

    trainer.get_model_params = copy_once
    api.train()
    return api.final


# -------------------------------------------------------------------------- child


def child(name, job_name, spawned, out):
    """Run one system once and write the marks; runs in its own process."""
    import numpy as np
    import torch

    spec = SYSTEMS[name]
    torch.set_num_threads(spec.threads)
    clock = Clock()
    job = get_job(job_name)
    state = spec.fn(job, clock)
    done = time.monotonic()

    # Checks, outside the measured time.  Batch statistics are used for the test
    # because systems differ in whether they average batch-norm buffers.
    model = job.make_model()
    model.load_state_dict(state)
    weights = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    np.save(out + ".npy", weights)
    x, y = job.test
    with torch.no_grad():
        logits = model.train()(x)
    ends = [clock.begin, *clock.ends]
    result = {
        "startup_s": clock.begin - spawned,
        "rounds_s": [b - a for a, b in itertools.pairwise(ends)],
        "accuracy": (logits.argmax(1) == y).float().mean().item(),
        "loss": torch.nn.functional.cross_entropy(logits, y).item(),
        "parameters": int(weights.size),
        "cohort": job.cohort,
        "threads": torch.get_num_threads(),
        "versions": {p: _version(p) for p in ("torch", "numpy", "scikit-learn", *spec.packages)},
    }
    assert len(result["rounds_s"]) == job.rounds, "a system must mark every round"
    result["check_s"] = time.monotonic() - done
    with open(out, "w") as f:
        json.dump(result, f)


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ------------------------------------------------------------------------- parent

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "UV_OFFLINE": "1",
    "WANDB_MODE": "disabled",
}


def measure(name, job_name, python, work, pss=False, timeout=600):
    """One child process: wall time, marks, peak memory of the process tree."""
    import psutil

    out = os.path.join(work, "result.json")
    for path in (out, out + ".npy"):
        if os.path.exists(path):
            os.remove(path)
    env = {**os.environ, **QUIET, "FLWR_HOME": os.path.join(work, "flwr")}
    env["PYTHONPATH"] = HERE + os.pathsep + env.get("PYTHONPATH", "")
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["OMP_NUM_THREADS"] = str(SYSTEMS[name].threads)
    code = "import sys, peers_fedavg as b; b.child(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])"
    load = os.getloadavg()[0]
    busy0 = _busy()
    seen, cpu, peak = {}, {}, 0
    with open(os.path.join(work, "log.txt"), "w") as log:
        start = time.monotonic()
        proc = subprocess.Popen(
            [python, "-c", code, name, job_name, repr(start), out],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=work,
        )
        root = psutil.Process(proc.pid)
        end = None
        while end is None:
            try:
                proc.wait(timeout=0.25)
                end = time.monotonic()
                break
            except subprocess.TimeoutExpired:
                pass
            now = 0
            try:
                tree = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                tree = []
            for p in tree:
                try:
                    seen.setdefault(p.pid, p)
                    now += p.memory_full_info().pss if pss else p.memory_info().rss
                    t = p.cpu_times()
                    cpu[p.pid] = t.user + t.system
                except psutil.Error:
                    pass
            peak = max(peak, now)
            if time.monotonic() - start > timeout:
                proc.kill()
                proc.wait()
                end = time.monotonic()
    busy = _busy() - busy0
    others = [p for p in seen.values() if p.pid != proc.pid]
    _, left = psutil.wait_procs(others, timeout=5)
    for p in left:  # only processes this measurement started
        with contextlib.suppress(psutil.Error):
            p.kill()
    if proc.returncode or not os.path.exists(out):
        with open(os.path.join(work, "log.txt")) as f:
            tail = f.read()[-2000:]
        return {"error": f"exit {proc.returncode}", "log_tail": tail}
    with open(out) as f:
        result = json.load(f)
    result["wall_s"] = end - start - result["check_s"]
    result["peak_pss_mb" if pss else "peak_rss_mb"] = peak / 2**20
    result["processes_seen"] = len(seen)
    result["processes_left_over"] = len(left)
    result["load_before"] = load
    # CPU seconds burnt by the rest of the machine meanwhile (a lower-quality
    # figure: the tree's own share is what the last samples showed).
    result["other_cpu_s"] = max(0.0, busy - sum(cpu.values()))
    result["weights"] = out + ".npy"
    return result


def _busy():
    import psutil

    t = psutil.cpu_times()
    return sum(t) - t.idle - getattr(t, "iowait", 0.0) - getattr(t, "guest", 0.0) - getattr(t, "guest_nice", 0.0)


def summarise(runs, base):
    mid = lambda f: statistics.median(f(r) for r in runs)  # noqa: E731
    row = {
        "wall_s": mid(lambda r: r["wall_s"]),
        "startup_s": mid(lambda r: r["startup_s"]),
        "first_round_s": mid(lambda r: r["rounds_s"][0]),
        "steady_round_s": mid(lambda r: statistics.median(r["rounds_s"][1:])),
        "peak_rss_mb": mid(lambda r: r["peak_rss_mb"]),
        "accuracy": mid(lambda r: r["accuracy"]),
        "weights_vs_bare": mid(lambda r: r["weights_vs_bare"]),
        "other_cpu_s": mid(lambda r: r["other_cpu_s"]),
    }
    rounds, cohort = len(runs[0]["rounds_s"]), runs[0]["cohort"]
    row["fixed_s"] = row["wall_s"] - rounds * row["steady_round_s"]
    steady = [statistics.median(r["rounds_s"][1:]) for r in runs]
    row["steady_round_range_s"] = [min(steady), max(steady)]
    row["turn_ms"] = 1000 * row["steady_round_s"] / cohort
    if base:
        row["turn_overhead_ms"] = row["turn_ms"] - base["turn_ms"]
    return row


def main():
    import numpy as np

    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--systems", default=",".join(SYSTEMS))
    ap.add_argument("--jobs", default="J1,J2")
    ap.add_argument("--repeats", type=int, default=3)
    ap.add_argument("--tiny", action="store_true", help="tiny sizes, for development")
    ap.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="SYSTEM=EXE",
        help="interpreter for one system (its own environment)",
    )
    ap.add_argument("--wait-file", help="wait until this file is gone before measuring")
    ap.add_argument("--wait-max", type=float, default=2100, help="seconds to wait at most")
    ap.add_argument("--no-pss", action="store_true", help="skip the extra memory run")
    ap.add_argument("--note", default="", help="free text kept in the JSON (machine, load)")
    ap.add_argument("--out")
    a = ap.parse_args()

    names, jobs = a.systems.split(","), a.jobs.split(",")
    if "bare" not in names:
        names.insert(0, "bare")
    pythons = dict(p.split("=", 1) for p in a.python)
    waited = time.monotonic()
    while a.wait_file and os.path.exists(a.wait_file) and time.monotonic() - waited < a.wait_max:
        time.sleep(5)
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "python": sys.version.split()[0],
        "cpus": os.cpu_count(),
        "repeats": a.repeats,
        "tiny": a.tiny,
        "note": a.note,
        "started_while_wait_file_existed": bool(a.wait_file and os.path.exists(a.wait_file)),
        "jobs": {},
        "versions": {},
    }
    for job in jobs:
        runs = {n: [] for n in names}
        pss, failed = {}, {}
        with tempfile.TemporaryDirectory(prefix="peers-") as work:
            reference = None
            for repeat in range(a.repeats + (not a.no_pss)):
                for n in names:  # interleaved, so that drift hits every system
                    if n in failed:
                        continue
                    memory_run = repeat == a.repeats
                    r = measure(
                        n, job + ("-tiny" if a.tiny else ""), pythons.get(n, sys.executable), work, pss=memory_run
                    )
                    if "error" in r:
                        failed[n] = {**r, "log_tail": r["log_tail"].strip().rpartition("\n")[2]}  # no paths in a result
                        print(f"{job} {n}: {r['error']}\n{r['log_tail']}", file=sys.stderr, flush=True)
                        continue
                    if memory_run:
                        pss[n] = r["peak_pss_mb"]
                        continue
                    w = np.load(r.pop("weights"))
                    reference = w if reference is None else reference
                    r["weights_vs_bare"] = float(np.linalg.norm(w - reference) / np.linalg.norm(reference))
                    report["versions"].update({f"{n}:{k}": v for k, v in r.pop("versions").items()})
                    runs[n].append(r)
                    print(
                        f"{job} {n} #{repeat + 1}: wall {r['wall_s']:.2f}s, rounds "
                        + " ".join(f"{s:.3f}" for s in r["rounds_s"])
                        + f", acc {r['accuracy']:.3f}, other cpu {r['other_cpu_s']:.1f}s",
                        flush=True,
                    )
        base, rows = None, {}
        for n in names:
            if runs[n]:
                rows[n] = summarise(runs[n], base)
                rows[n]["peak_pss_mb"] = pss.get(n)
                base = base or rows[n]
        report["jobs"][job] = {"summary": rows, "runs": runs, "failed": failed}
        if a.out:  # after every job, so that a late failure loses little
            with open(a.out, "w") as f:
                json.dump(report, f, indent=1)

    head = (
        "wall_s",
        "startup_s",
        "first_round_s",
        "steady_round_s",
        "fixed_s",
        "turn_ms",
        "turn_overhead_ms",
        "peak_rss_mb",
        "peak_pss_mb",
        "accuracy",
        "weights_vs_bare",
    )
    for job, part in report["jobs"].items():
        print("\n| " + job + " | " + " | ".join(head) + " |\n|" + "---|" * (len(head) + 1))
        for n, row in part["summary"].items():
            print("| " + n + " | " + " | ".join("" if row.get(h) is None else f"{row[h]:.4g}" for h in head) + " |")


if __name__ == "__main__":
    # Import by name, so that objects sent to workers refer to a real module.
    sys.path.insert(0, HERE)
    import peers_fedavg

    peers_fedavg.main()
