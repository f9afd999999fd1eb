"""Decide for each message between a client and its server whether to pass the message on.

The guard trusts the client, because it belongs to the user. It does not trust the server, because
the server may try to mislead the client's model. If no rule applies to a message, the guard passes
it on unchanged. It answers a refused request with an error that names the rule, so that the sender
does not wait forever.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from corral.messages import answers
from corral.messages.answers import NAMES, REFUSED, Answers, error_message
from corral.messages.frames import (
    IdKey,
    Kind,
    Message,
    TooLong,
    as_table,
    decode,
    encode,
    has_lookalikes,
    id_key,
    kind_of,
)
from corral.messages.rules import Refusal, Rules
from corral.record import record

INVALID_REQUEST = -32600
MAX_CANCELLED = 1024
MAX_NAME_LENGTH = 300
ALWAYS_ALLOWED = ("ping",)
CAPABILITIES = ("sampling", "elicitation", "roots")
REQUEST_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
NAMED_BY: Mapping[str, tuple[str, str]] = {
    "tools/call": ("tool", "name"),
    "prompts/get": ("prompt", "name"),
    "resources/read": ("resource", "uri"),
    "resources/subscribe": ("resource", "uri"),
    "resources/unsubscribe": ("resource", "uri"),
}
"""Client methods that refer to one tool, prompt or resource: {method: (kind, parameter with the
name)}.
"""
REFERENCES = {"ref/prompt": ("prompt", "name"), "ref/resource": ("resource", "uri")}
Judge = Callable[[Message, Kind, int, list[bytes]], Message | None]
"""A function that judges a message. It returns the message to pass on, or None to drop the message,
and appends answers to the sender to its last argument.
"""


@record
class Call:
    """One finished tool call. `outcome` is result, error, refused, cancelled or unanswered."""

    tool: str
    outcome: str
    sent: int
    received: int = 0
    seconds: float = 0.0
    arguments: str = ""


@record
class Asked:
    method: str
    name: str
    size: int
    since: float
    arguments: str


@record
class Routed:
    """The bytes to send: `onward` to the other side, `back` to the sender, `aside` to stderr."""

    onward: bytes = b""
    back: bytes = b""
    aside: bytes = b""


class Reporter(answers.Reporter, Protocol):
    def log(self, call: Call) -> None: ...


class Guard:
    """Judges the messages of one conversation. To limit its memory, it stores only the pins, at
    most `max_pending` unanswered requests from each side, and the ids of the last MAX_CANCELLED
    cancelled requests.
    """

    def __init__(
        self,
        rules: Rules,
        reporter: Reporter,
        *,
        max_pending: int,
        describe_arguments: Callable[[object], str] = lambda _: "",
    ) -> None:
        """`describe_arguments` returns the text that is logged for the arguments of a call."""
        self._rules = rules
        self._reporter = reporter
        self._answers = Answers(rules, reporter)
        self._max_pending = max_pending
        self._describe_arguments = describe_arguments
        self._asked: dict[IdKey, Asked] = {}
        self._cancelled: OrderedDict[IdKey, None] = OrderedDict()
        self._server_asked: set[IdKey] = set()

    def from_client(self, frame: bytes | TooLong) -> Routed:
        if isinstance(frame, TooLong):
            refusal = self._refuse_size(frame, "the client")
            return Routed(back=_error(frame.find_id(), refusal.text()))
        return self._route(frame, self._judge_client, aside=False)

    def from_server(self, frame: bytes | TooLong) -> Routed:
        if isinstance(frame, TooLong):
            return self._drop_long_answer(frame)
        return self._route(frame, self._judge_server, aside=True)

    def end(self) -> None:
        """Log the calls that were never answered."""
        for asked in self._asked.values():
            self._log(asked, "unanswered")
        self._asked.clear()

    def _route(self, frame: bytes, judge: Judge, *, aside: bool) -> Routed:
        try:
            return _judge_frame(frame, judge)
        except (ValueError, RecursionError) as error:
            return self._no_message(frame, str(error), aside=aside)

    def _no_message(self, frame: bytes, why: str, *, aside: bool) -> Routed:
        if aside:
            self._deny("message", "output that is not a JSON-RPC message", "mcp: sent to stderr")
            return Routed(aside=frame)
        self._deny("message", "a line from the client that is not JSON-RPC", "mcp: not passed on")
        return Routed(back=_error(None, f"corral: not passed on: {why}", INVALID_REQUEST))

    # Messages of the client

    def _judge_client(
        self, message: Message, kind: Kind, size: int, back: list[bytes]
    ) -> Message | None:
        if kind == "answer":
            self._server_asked.discard(_key(message.get("id")))
            return message
        method, params = str(message["method"]), as_table(message.get("params"))
        refusal = self._check_call(method, params)
        if kind == "notification" and method == "notifications/cancelled":
            self._cancel(params.get("requestId"))
        if kind == "request":
            refusal = refusal or self._remember(message, method, params, size)
        if refusal is None:
            return self._without_capabilities(message, method, params)
        self._reporter.deny(refusal)
        if method == "tools/call":
            self._log(self._describe(method, params, size), "refused")
        if kind == "request":
            back.append(_error(message["id"], refusal.text()))
        return None

    def _check_call(self, method: str, params: Message) -> Refusal | None:
        """Return a refusal if a rule forbids the item that a request names."""
        if method in NAMED_BY:
            kind, field = NAMED_BY[method]
            return self._check_named(kind, params, field)
        if method == "completion/complete":
            reference = as_table(params.get("ref"))
            if (found := REFERENCES.get(str(reference.get("type")))) is not None:
                return self._check_named(found[0], reference, found[1])
        if method == "subscriptions/listen":
            wanted = as_table(params.get("notifications")).get("resourceSubscriptions")
            for uri in wanted if isinstance(wanted, list) else ():
                if (refusal := self._rules.check_name("resource", str(uri))) is not None:
                    return refusal
        return None

    def _check_named(self, kind: str, params: Message, field: str) -> Refusal | None:
        if not self._rules.has_rule(kind):
            return None
        name = params.get(field)
        if not isinstance(name, str) or has_lookalikes(params, NAMES):
            rule = f"mcp: the message names no {kind}"
            return Refusal(kind=kind, what=str(name), rule=rule)
        return self._rules.check(kind, name)

    def _remember(
        self, message: Message, method: str, params: Message, size: int
    ) -> Refusal | None:
        key = id_key(message["id"])
        if key is None or key in self._asked:
            rule = "mcp: its id is in use" if key else "mcp: its id is not a string or an integer"
            return Refusal(kind="message", what=method, rule=rule)
        if len(self._asked) >= self._max_pending:
            rule = f"mcp.max_pending ({self._max_pending})"
            return Refusal(kind="message", what=method, rule=rule)
        self._cancelled.pop(key, None)
        self._asked[key] = self._describe(method, params, size)
        return None

    def _describe(self, method: str, params: Message, size: int) -> Asked:
        is_call = method == "tools/call"
        return Asked(
            method=method[:MAX_NAME_LENGTH],
            name=str(params.get("name", ""))[:MAX_NAME_LENGTH] if is_call else "",
            size=size,
            since=time.monotonic(),
            arguments=self._describe_arguments(params.get("arguments")) if is_call else "",
        )

    def _cancel(self, identity: object) -> None:
        """Stop waiting for the answer to a cancelled request, because it may never come."""
        key = _key(identity)
        if (asked := self._asked.pop(key, None)) is None:
            return
        self._log(asked, "cancelled")
        self._cancelled[key] = None
        if len(self._cancelled) > MAX_CANCELLED:
            self._cancelled.popitem(last=False)

    def _without_capabilities(self, message: Message, method: str, params: Message) -> Message:
        """Hide those capabilities of the client that the server may not use. Older protocols send
        capabilities in `initialize`, newer ones in every request.
        """
        if method == "initialize":
            return _replaced(message, ("params", "capabilities"), self._offered)
        if REQUEST_CAPABILITIES in as_table(params.get("_meta")):
            return _replaced(message, ("params", "_meta", REQUEST_CAPABILITIES), self._offered)
        return message

    def _offered(self, capabilities: object) -> object:
        table = as_table(capabilities)
        hidden = [
            name for name in CAPABILITIES if name in table and not self._rules.may_request(name)
        ]
        if not hidden:
            return capabilities
        return {name: value for name, value in table.items() if name not in hidden}

    # Messages of the server

    def _judge_server(
        self, message: Message, kind: Kind, size: int, back: list[bytes]
    ) -> Message | None:
        if kind == "answer":
            return self._judge_answer(message, size)
        method = str(message["method"])
        if kind == "notification":
            return self._judge_notification(message, method, as_table(message.get("params")))
        if method in ALWAYS_ALLOWED:
            return message
        rule = "mcp.requests"
        if self._rules.may_request(method) and (key := id_key(message["id"])) is not None:
            if len(self._server_asked) < self._max_pending:
                self._server_asked.add(key)
                return message
            rule = f"mcp.max_pending ({self._max_pending})"
        refusal = Refusal(kind="request", what=method, rule=rule)
        self._reporter.deny(refusal)
        back.append(_error(message["id"], refusal.text()))
        return None

    def _judge_notification(self, message: Message, method: str, params: Message) -> Message | None:
        if method == "notifications/cancelled":
            self._server_asked.discard(_key(params.get("requestId")))
        if method == "notifications/resources/updated":
            refusal = self._rules.check_name("resource", str(params.get("uri")))
            if refusal is not None:
                self._reporter.deny(refusal)
                return None
        return message

    def _judge_answer(self, message: Message, size: int) -> Message | None:
        key = _key(message.get("id"))
        asked = self._asked.pop(key, None)
        if asked is None:
            if key not in self._cancelled:
                self._deny("message", "an answer that no request is waiting for", "mcp: dropped")
            return None
        judged = self._answers.judge(asked.method, message)
        failed = "error" in judged or as_table(judged.get("result")).get("isError") is True
        self._log(asked, "error" if failed else "result", size)
        return judged

    def _refuse_size(self, frame: TooLong, sender: str) -> Refusal:
        what = f"{frame.size} bytes from {sender}"
        refusal = Refusal(kind="message", what=what, rule="mcp.max_message")
        self._deny("message", f"a message from {sender} that is too long", refusal.rule)
        return refusal

    def _drop_long_answer(self, frame: TooLong) -> Routed:
        """Drop an overlong message. If its id can still be read and belongs to a request, answer
        the request with an error.
        """
        refusal = self._refuse_size(frame, "the server")
        identity = frame.find_id()
        asked = self._asked.pop(_key(identity), None)
        if asked is None:
            return Routed()
        self._log(asked, "refused", frame.size)
        return Routed(onward=_error(identity, refusal.text()))

    def _deny(self, kind: str, what: str, rule: str) -> None:
        self._reporter.deny(Refusal(kind=kind, what=what, rule=rule))

    def _log(self, asked: Asked, outcome: str, received: int = 0) -> None:
        if asked.method == "tools/call":
            self._reporter.log(
                Call(
                    tool=asked.name,
                    outcome=outcome,
                    sent=asked.size,
                    received=received,
                    seconds=time.monotonic() - asked.since,
                    arguments=asked.arguments,
                )
            )


def _judge_frame(frame: bytes, judge: Judge) -> Routed:
    """Judge each message in a frame. If no message is changed, pass the frame on as it is."""
    value = decode(frame)
    messages = value if isinstance(value, list) else [value]
    kinds = [kind_of(message) for message in messages]
    if not messages or None in kinds:
        raise ValueError("the line is not a JSON-RPC message")
    back: list[bytes] = []
    judged = [
        judge(message, kind, len(frame), back)
        for message, kind in zip(messages, kinds, strict=True)
        if kind is not None and isinstance(message, dict)
    ]
    if all(new is old for new, old in zip(judged, messages, strict=True)):
        return Routed(onward=frame, back=b"".join(back))
    kept = [message for message in judged if message is not None]
    onward = encode(kept if isinstance(value, list) else kept[0]) if kept else b""
    return Routed(onward=onward, back=b"".join(back))


def _replaced(message: Message, path: Sequence[str], change: Callable[[object], object]) -> Message:
    """Return a copy of the message with a changed value at `path`. If the value stays the same,
    return the message itself.
    """
    key, *rest = path
    old = message.get(key)
    new = _replaced(as_table(old), rest, change) if rest else change(old)
    return message if new is old or (rest and new == old) else {**message, key: new}


def _key(identity: object) -> IdKey:
    """Return the key under which the request with this id is stored. For an invalid id, return a
    key that no request has.
    """
    return id_key(identity) or (object, None)


def _error(identity: object, text: str, code: int = REFUSED) -> bytes:
    return encode(error_message(identity, text, code))
