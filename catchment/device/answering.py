"""What a device answers: nothing that its policy forbids, and never an exception."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from catchment.client.state import StoredVersions
from catchment.config.experiment import Experiment
from catchment.core import transport
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.data.division import own_division
from catchment.data.fitting import Fit
from catchment.device.budget import Budget
from catchment.device.consent import Proposal
from catchment.device.disk import Announcement, Disk, RunFolder, approve, approved
from catchment.device.policy import Policy, Refusal, digest
from catchment.device.sent import Rate, SentLog
from catchment.device.time_limit import TimeLimit
from catchment.errors import CatchmentError, DataError, ModelError, RunError, UserError, WireError, printable
from catchment.exchange.request import Request, Response
from catchment.files import FileLock
from catchment.runtimes.torch import serve
from catchment.version import __version__

Fields = dict[str, str | int]
Kind = TypeVar("Kind", str, int)
HELLO_FIRST = "hello first"
NOT_APPROVED = "nobody has approved this run on the device yet"
LONGEST_KEY = 200
GREETINGS, PAUSE = 100, 60.0  # that are answered at once, and seconds after which one more is
LONGEST_TEXT = 10_000_000  # characters of an experiment
GENERIC: tuple[tuple[type[BaseException], str], ...] = (
    (DataError, "the data cannot be read"),
    (ModelError, "the model cannot be built on this device"),
    (WireError, "the message cannot be read"),
    (MemoryError, "the device does not have enough memory"),
    (RunError, "the work was stopped"),
)  # all that a server learns of an error on the device


class RealDevice:
    """One client on its own machine, which answers what its policy allows.

    `ask` shows a person what a run would do and returns whether they agree; without it only runs that are already
    approved are joined. `tell` shows the owner what was refused.
    """

    def __init__(
        self,
        policy: Policy,
        ask: Callable[[str], bool] | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.client = policy.client
        self.samples = 0  # that the client trains on, in the last experiment
        self._policy = policy
        self._ask_person = ask
        self._tell = tell
        self._shown: set[str] = set()  # digests of runs that the person has seen and not approved
        self._time_limit = TimeLimit(policy.limits.seconds_per_request)
        self._cache = WorkerCache(self._time_limit.stop)
        self._world: tuple[Announcement, World, Experiment] | None = None
        self._versions: tuple[str, StoredVersions] | None = None  # of a federation
        try:
            self._disk = Disk(policy.state, policy.client, policy.limits)
            self._lock = FileLock(
                policy.state / f"client-{policy.client}.lock", f"client {policy.client}; give each its own state"
            )
        except OSError as error:
            raise UserError(
                f"{policy.state} cannot be used for the state of client {policy.client}: {error.strerror}"
            ) from None
        self._log = SentLog(policy.state)
        self._greetings = Rate(GREETINGS, PAUSE)

    def start_anew(self) -> None:
        """Leave the current run, as the owner has restarted the device; the next greeting may start one."""
        self._disk.end()

    def answer(self, kind: str, fields: Mapping[str, Any], raw: bytes) -> tuple[Fields, bytes]:
        """The reply to one message. Of an error the server gets a few words; the log has the rest."""
        federation = fields.get("federation") if isinstance(fields, Mapping) else None
        try:
            if kind == "hello":
                return self._hello(fields), b""
            if kind == "ask":
                return self._ask(fields, raw)
            if kind == "fetch":
                return self._fetch(fields)
            if kind == "bye":
                return self._bye(fields), b""
            raise WireError(f'unknown kind of message "{kind}"; hello, ask, fetch and bye are known')
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            refusal: Fields = {"error": self._refused(str(federation), str(kind), error)}
            if refusal["error"] == NOT_APPROVED:  # so that the server can say whose owner it waits for
                refusal["client"] = self.client
            return refusal, b""

    # ---- greetings ----

    def _hello(self, fields: Mapping[str, Any]) -> Fields:
        """Who this is, once the run is signed, allowed, approved and can be built; an error until then."""
        version, federation = _field(fields, "version", str), _field(fields, "federation", str)
        announcement = Announcement(_field(fields, "experiment", str), _field(fields, "form", str))
        if version != __version__:
            raise Refusal(
                f"the server has Catchment {version}, client {self.client} has {__version__}",
                f"this device has Catchment {__version__}",
            )
        if not self._greetings.allows():
            raise Refusal(f"more than {GREETINGS} greetings in a short time", "the device was greeted too often")
        if max(map(len, announcement)) > LONGEST_TEXT:
            raise Refusal(f"an experiment of more than {LONGEST_TEXT:,} characters", "the experiment is too long")
        run = self._disk.run(federation)
        if self._disk.current not in ("", federation):
            raise Refusal(
                f"this device takes part in the run {self._disk.current}, which is not over; to leave it, restart "
                "catchment join",
                "the device takes part in another run",
            )
        self._check_signature(federation, digest(*announcement), _field(fields, "signature", str))
        proposal = self._time_limit.run(lambda: Proposal.read(announcement, self._policy))
        self._check_consent(proposal)
        if run.announcement not in (None, announcement):
            raise Refusal("a run of this name has another experiment", "the device takes part in another run")
        self._disk.make_room(sum(map(len, announcement)))
        world = self._time_limit.run(lambda: self._build(announcement, proposal))
        self.samples = len(world.private(self.client))
        if self.samples < self._policy.limits.least_samples:
            raise Refusal(
                f"there are {self.samples} samples; limits.least_samples is {self._policy.limits.least_samples:g}",
                "the device has too few samples",
            )
        self._disk.begin(federation, announcement)
        answer: Fields = {"client": self.client}
        if "counts" in self._policy.allow.leaves:
            answer["samples"] = self.samples
        if world.remembers:
            answer["states"] = self._remembered(federation, run).count
        self._log.note(federation, "hello", answer)
        return answer

    def _check_signature(self, federation: str, fingerprint: str, signature: str) -> None:
        if self._policy.federation is not None:
            from catchment.keys.keys import check_signature

            try:
                check_signature(self._policy.federation, federation, fingerprint, signature)
            except UserError as error:
                raise Refusal(str(error), "the run is not signed by the key that this device trusts") from None

    def _check_consent(self, proposal: Proposal) -> None:
        """Refuse a run unless it is approved: in the policy, earlier, or now by a person, who is asked once."""
        if proposal.digest in (*self._policy.allow.experiments, *approved(self._policy.state)):
            return
        if self._ask_person is None:
            if proposal.digest not in self._shown:
                self._shown.add(proposal.digest)
                self._tell(proposal.summary(self._policy))
            raise Refusal(
                f"nobody has approved this run ({proposal.experiment.method['name']}, {proposal.experiment.rounds} "
                f"rounds); to do so: catchment policy --approve {proposal.digest}",
                NOT_APPROVED,
            )
        if proposal.digest in self._shown or not self._ask_person(proposal.summary(self._policy)):
            self._shown.add(proposal.digest)
            raise Refusal(f"the person said no to {proposal.digest}", "the device's owner said no")
        approve(self._policy.state, proposal.digest)

    def _bye(self, fields: Mapping[str, Any]) -> Fields:
        if _field(fields, "federation", str) == self._disk.current:
            self._disk.end()
        return {"client": self.client}

    # ---- requests and responses ----

    def _ask(self, fields: Mapping[str, Any], raw: bytes) -> tuple[Fields, bytes]:
        """Serve a request once all its parts are here; of a long response the first part is sent."""
        federation, key = _field(fields, "federation", str), _key(fields)
        part, count = _field(fields, "part", int), _field(fields, "parts", int)
        if not 0 <= part < count:
            raise WireError(f"part {part} of {count}")
        run, announcement = self._accepted(federation)
        limits = self._policy.limits
        self._disk.make_room(len(raw))
        whole = run.receive(key, part, count, raw, limits.bytes_down_per_message)
        if whole is None:
            return {"client": self.client, "parts": 0}, b""
        request, budget = Request.from_bytes(whole), self._budget(announcement)
        budget.count_request(request.round)
        answer = run.response(key)
        if answer is not None:
            self._log.note(federation, "the last answer again", {}, len(answer))
        else:
            answer = self._respond(federation, run, announcement, budget, key, request)
        budget.spend(min(len(answer), transport.PART))
        return {"client": self.client, "parts": transport.parts(len(answer))}, answer[: transport.PART]

    def _respond(
        self, federation: str, run: RunFolder, announcement: Announcement, budget: Budget, key: str, request: Request
    ) -> bytes:
        """Compute a response, and keep and note it before it leaves."""
        if request.client != self.client:
            raise WireError(f"a request for client {request.client} came to client {self.client}")
        limits = self._policy.limits
        run.forget_response()
        budget.afford(1)
        began = time.monotonic()
        try:
            response = self._time_limit.run(lambda: self._serve(federation, run, announcement, request))
        except BaseException:
            self._forget_work()
            raise
        finally:
            budget.count_work(time.monotonic() - began)
        if response.body is None:
            self._forget_work()
            failure = Refusal(response.error, "the work failed; the device's log says why")
            return response._replace(error=self._refused(federation, request.handler, failure)).to_bytes()
        size = response.size()
        if size > limits.bytes_up_per_message:
            raise Refusal(
                f"an answer of {size:,} bytes; limits.bytes_up_per_message is {limits.bytes_up_per_message:,.0f}",
                "the answer is longer than the device allows",
            )
        budget.afford(size)
        self._disk.make_room(size)
        answer = response.to_bytes()
        self._log.sent(federation, request, response.body, size)
        run.keep_response(key, answer)
        return answer

    def _forget_work(self) -> None:
        """Drop caches that unfinished work may have left inconsistent."""
        self._cache = WorkerCache(self._time_limit.stop)
        self._versions = None

    def _serve(self, federation: str, run: RunFolder, announcement: Announcement, request: Request) -> Response:
        world, experiment = self._seen(announcement)
        if request.round > experiment.rounds:
            raise Refusal(
                f"round {request.round} was asked for; the run has {experiment.rounds}", "the run has fewer rounds"
            )
        versions = self._remembered(federation, run) if world.remembers else None
        return serve(world, request, versions, self._cache)

    def _fetch(self, fields: Mapping[str, Any]) -> tuple[Fields, bytes]:
        """A later part of the last response."""
        federation, key, part = _field(fields, "federation", str), _key(fields), _field(fields, "part", int)
        run, announcement = self._accepted(federation)
        answer = run.response(key)
        if answer is None:
            raise WireError("there is no response to this request to fetch a part of")
        if not 0 <= part < transport.parts(len(answer)):
            raise WireError(f"part {part} of a response of {transport.parts(len(answer))} parts")
        raw = answer[part * transport.PART : (part + 1) * transport.PART]
        self._budget(announcement).spend(len(raw))
        return {"client": self.client}, raw

    # ---- what is kept between messages ----

    def _accepted(self, federation: str) -> tuple[RunFolder, Announcement]:
        run = self._disk.run(federation)
        announcement = run.announcement
        if announcement is None or self._disk.current != federation:
            raise Refusal(HELLO_FIRST, HELLO_FIRST)
        self._disk.touch()
        return run, announcement

    def _budget(self, announcement: Announcement) -> Budget:
        """What the runs of this experiment may still have, whatever a server calls them."""
        policy, found = self._policy, digest(*announcement)
        approvals = [*policy.allow.experiments, *approved(policy.state)].count(found)
        return Budget(policy.state, self.client, found, policy.limits, approvals)

    def _remembered(self, federation: str, run: RunFolder) -> StoredVersions:
        """The versions of this client's state in one run."""
        if self._versions is None or self._versions[0] != federation:
            self._versions = (federation, run.versions())
        return self._versions[1]

    def _seen(self, announcement: Announcement) -> tuple[World, Experiment]:
        if self._world is None or self._world[0] != announcement:
            self._build(announcement, Proposal.read(announcement, self._policy))
        assert self._world is not None
        return self._world[1:]

    def _build(self, announcement: Announcement, proposal: Proposal) -> World:
        """The experiment's data, models and method on this device; built once."""
        if self._world is None or self._world[0] != announcement:
            experiment, form = proposal.experiment, proposal.form
            if experiment.data.own:
                if self._policy.data is None:
                    raise DataError("the policy does not say where this client's own data are; set data")
                fit = Fit(experiment.data.size, experiment.data.channels)
                division = own_division(self._policy.data, form, self.client, experiment.data.clients, fit)
                for fault, count in division.dataset.faults.items():
                    self._tell(f"{fault}: {count:,}")
            else:
                division = experiment.divide()
            if (division.dataset.shape, division.dataset.classes) != (form.shape, form.classes):
                raise DataError(
                    f"the data here are {division.dataset.shape} of {len(division.dataset.classes)} classes, those of "
                    f"the server {form.shape} of {len(form.classes)}, or classes have other names"
                )
            self._world = None  # so that two are never in memory at once
            self._world = (announcement, experiment.build_world(division), experiment)
            self._cache = WorkerCache(self._time_limit.stop)
            torch.set_num_threads(experiment.threads)
        return self._world[1]

    def _refused(self, federation: str, kind: str, error: BaseException) -> str:
        """Log a refusal, and return what the server may know of it."""
        why = str(error) if isinstance(error, CatchmentError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            if self._log.refused(federation, kind, why):
                self._tell(f"refused: {printable(why, 500)}")
        if self._policy.allow.trusted:
            return why
        if isinstance(error, Refusal):
            return error.to_server
        return next((text for kinds, text in GENERIC if isinstance(error, kinds)), "the device could not do it")


def _field(fields: Mapping[str, Any], name: str, kind: type[Kind]) -> Kind:
    """A field of a message, if it is of the right type."""
    value = fields.get(name)
    if type(value) is not kind:
        raise WireError(f"the field {name} is {type(value).__name__}; {kind.__name__} is expected")
    return value


def _key(fields: Mapping[str, Any]) -> str:
    key = _field(fields, "key", str)
    if not re.fullmatch(rf"[\w.-]{{1,{LONGEST_KEY}}}", key):
        raise WireError("the key of a request has strange characters, or too many")
    return key
