"""Apply the rules to a server's answers: to lists, to instructions, and to requests inside an
answer.
"""

from typing import Protocol

from corral.messages.definitions import LISTS, ListMethod
from corral.messages.frames import Message, as_table, has_lookalikes, id_key
from corral.messages.rules import Refusal, Rules

REFUSED = -32010
"""The error code of refusals. JSON-RPC leaves this code to implementations, and no SDK uses it."""
URL_ELICITATION_REQUIRED = -32042
"""Servers use this error code to ask the client to open URLs (protocol 2025-11-25)."""
ELICITATION = "elicitation/create"
NAMES = frozenset(("name", "uri", "uriTemplate"))
DEFINITION = NAMES | {
    "title", "description", "inputSchema", "outputSchema", "annotations", "arguments", "icons",
}  # fmt: skip
INPUT_REQUESTS = "inputRequests"


class Reporter(Protocol):
    def deny(self, refusal: Refusal) -> None: ...
    def change(self, kind: str, name: str, text: str) -> None: ...


class Answers:
    """Applies the rules to each answer. Which rules apply depends on the method of the request, not
    on the fields in the answer.
    """

    def __init__(self, rules: Rules, reporter: Reporter) -> None:
        self._rules = rules
        self._reporter = reporter

    def judge(self, method: str, message: Message) -> Message:
        """Return the answer to pass on: the original, a copy without the refused parts, or an
        error.
        """
        if "error" in message:
            error = as_table(message["error"])
            asks = error.get("code") == URL_ELICITATION_REQUIRED or has_lookalikes(error, {"code"})
            if asks and not self._rules.may_request(ELICITATION):
                return self._replace(message, "request", ELICITATION, "mcp.requests")
            return message
        result = message["result"]
        if (wanted := self._find_request(as_table(result))) is not None:
            return self._replace(message, "request", wanted, "mcp.requests")
        listed = LISTS.get(method)
        if listed is not None and self._rules.has_rule(listed.kind):
            return self._filter(message, as_table(result), listed)
        if method in ("initialize", "server/discover"):
            return self._check_instructions(message, as_table(result))
        return message

    def _find_request(self, result: Message) -> str | None:
        """Return the method of the first forbidden request in an answer, or None.

        Since protocol 2026-07-28 a server can put requests to the client into an answer.
        """
        if has_lookalikes(result, {INPUT_REQUESTS}):
            return INPUT_REQUESTS
        if (wanted := result.get(INPUT_REQUESTS)) is None:
            return None
        for request in wanted.values() if isinstance(wanted, dict) else (None,):
            method = as_table(request).get("method")
            if not isinstance(method, str) or not self._rules.may_request(method):
                return str(method)
            if has_lookalikes(as_table(request), {"method"}):
                return INPUT_REQUESTS
        return None

    def _filter(self, message: Message, result: Message, listed: ListMethod) -> Message:
        """Remove the items of a list that the rules forbid or that differ from the pinned
        definitions.

        Replace the whole answer with an error if it has no list, or if another key differs from the
        list's key only in case, because some clients would read that key instead.
        """
        found = result.get(listed.field)
        if not isinstance(found, list) or has_lookalikes(result, {listed.field}):
            rule = "mcp: the list is missing or ambiguous"
            return self._replace(message, "message", listed.field, rule)
        kept = [item for item in found if self._may_list(item, listed)]
        if len(kept) == len(found):
            return message
        return {**message, "result": {**result, listed.field: kept}}

    def _may_list(self, item: object, listed: ListMethod) -> bool:
        name = as_table(item).get(listed.name)
        if not isinstance(name, str) or has_lookalikes(as_table(item), DEFINITION):
            rule = "mcp: its definition has no clear name"
            self._reporter.deny(Refusal(kind=listed.kind, what=str(name), rule=rule))
            return False
        if self._rules.check_name(listed.kind, name) is not None:
            return False  # do not record a denial, because the item is only listed, not called
        return self._is_as_pinned(listed.kind, name, item)

    def _check_instructions(self, message: Message, result: Message) -> Message:
        if self._rules.has_pins and has_lookalikes(result, {"instructions"}):
            return self._replace(message, "message", "instructions", "mcp.pins: ambiguous key")
        text = result.get("instructions")
        if text is None or self._is_as_pinned("instructions", "", text):
            return message
        kept = {key: value for key, value in result.items() if key != "instructions"}
        return {**message, "result": kept}

    def _is_as_pinned(self, kind: str, name: str, definition: object) -> bool:
        """Report the differences between a definition and the pinned one. Return whether the client
        may see the definition.
        """
        changes = self._rules.compare(kind, name, definition)
        for line in changes:
            self._reporter.change(kind, name, line)
        return not changes or not self._rules.refuse_changes

    def _replace(self, message: Message, kind: str, what: str, rule: str) -> Message:
        refusal = Refusal(kind=kind, what=what, rule=rule)
        self._reporter.deny(refusal)
        return error_message(message["id"], refusal.text())


def error_message(identity: object, text: str, code: int = REFUSED) -> Message:
    error = {"code": code, "message": text}
    return {"jsonrpc": "2.0", "id": identity if id_key(identity) else None, "error": error}
