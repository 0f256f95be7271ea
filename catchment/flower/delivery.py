"""One request on its way to a client and its response on the way back, in parts if they are long."""

from __future__ import annotations

from catchment.core.transport import PART, parts
from catchment.errors import printable
from catchment.exchange.request import Request, Response
from catchment.flower.messages import Fields


class Delivery:
    """How far one request and its response have come."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.expires = float("inf")  # set when it is first sent
        self.greetings = 0  # to a device that did not know the run
        self._raw = b""
        self._sent = 0  # parts
        self._expected = 0  # parts of the response
        self._received: list[bytes] = []

    @property
    def key(self) -> str:
        """A key that distinguishes it from the client's other requests."""
        r = self.request
        return f"{r.resumes}-{r.sequence}-{r.purpose}-{r.round}-{r.turn}"

    def restart(self) -> None:
        """Begin again: the client that had parts of it is gone."""
        self._sent = self._expected = 0
        self._received = []

    def next_message(self) -> tuple[str, Fields, memoryview]:
        """Kind, fields and bytes of the next message: a part of the request, or a call for a part of the response."""
        self._raw = self._raw or self.request.to_bytes()
        count = parts(len(self._raw))
        if self._sent == count:
            return "train.fetch", {"key": self.key, "part": len(self._received)}, memoryview(b"")
        start = self._sent * PART
        fields: Fields = {"key": self.key, "part": self._sent, "parts": count}
        self._sent += 1
        return "train.ask", fields, memoryview(self._raw)[start : start + PART]

    def remaining(self, largest: int) -> int:
        """How many bytes are still to come of a response of `largest` bytes at most."""
        return largest - sum(map(len, self._received))

    def accept(self, count: object, raw: bytes, largest: int) -> Response | None:
        """Take a part of a response of `count` parts and `largest` bytes at most; the response once all are here.

        A count of 0 says that the next part of the request may come, None that the count was given before.
        """
        count = self._expected if count is None else count
        if type(count) is int and count == 0 and self._sent < parts(len(self._raw)):
            return None
        most = parts(largest)
        if type(count) is not int or not 1 <= count <= most or self._expected not in (0, count) or len(raw) > PART:
            given = f"{printable(count, 40)} parts, {len(raw)} bytes in this one"
            return self.failed(f"the response has {given}; expected are at most {most} of {PART} bytes each")
        if len(raw) > self.remaining(largest):
            size = largest - self.remaining(largest) + len(raw)
            return self.failed(f"the response has {size:,} bytes or more; expected are at most {largest:,}")
        self._expected = count
        self._received.append(raw)
        return None if len(self._received) < count else self._read()

    def _read(self) -> Response:
        request = self.request
        whole = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        try:
            response = Response.from_bytes(whole)
        except Exception as error:  # untrusted bytes
            return self.failed(f"the response cannot be read: {printable(error)}")
        if (response.client, response.sequence, response.aside) != (request.client, request.sequence, request.aside):
            return self.failed(f"client {request.client} answered another request")
        return response

    def lost(self, why: str) -> Response:
        """No response, for a reason that is not the client's."""
        request = self.request
        return Response(request.client, request.sequence, None, error=why, aside=request.aside)

    def failed(self, why: str) -> Response:
        """No response that could be used, which is the client's fault."""
        return self.lost(why)._replace(failed=True)
