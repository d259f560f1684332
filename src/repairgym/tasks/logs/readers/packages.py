"""Errors of npm, pnpm and yarn themselves; what a script of a package printed is left to the readers of its tool."""

import re
from collections.abc import Iterator

from repairgym.records import ErrorClass, MainError
from repairgym.tasks.logs.readers.base import Lines, Reader, error, first_class

_CLASSES: tuple[tuple[str, ErrorClass], ...] = (
    (
        (
            r"EBADENGINE|EBADPLATFORM|UNSUPPORTED_(?:ENGINE|PLATFORM)|is incompatible with this module"
            r"|Unsupported environment"
        ),
        "version",
    ),
    (
        r"EJSONPARSE|JSON_PARSE|EINVALIDPACKAGENAME|Missing script|NO_SCRIPT|NO_PKG_MANIFEST|NO_IMPORTER_MANIFEST",
        "configuration",
    ),
    (
        (
            r"Command \"\S+\" not found|Couldn't find a script|in JSON at position"
            r"|\S+package\.json: (?!.*ENOENT)|Invalid package name|EBADDEVENGINES"
        ),
        "configuration",
    ),
    (r"EACCES|EPERM|EROFS", "permission"),
    (r"ENOENT|ECONN|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ENOSPC|ERR_SOCKET|META_FETCH_FAIL|network", "environment"),
)
_NPM = re.compile(r"^npm (?:error|ERR!) ?(?P<text>.*)$")
_NPM_KEY = re.compile(r"^(?:notarget|notsup|engine|404|JSON\.parse|enoent|eresolve|ERESOLVE|network|audit|Error:) +")
_NPM_ABOUT = re.compile(
    r"^(?:code|syscall|path|errno|dest|file|command|cwd|workspace|location|Lifecycle script|signal) "
    r"|^A complete log|^\s*$"
)
_BY_CODE = {
    "ETARGET": r"notarget (?P<message>No matching .+)",
    "E404": r"404 +(?P<message>(?:The requested resource )?'.+)",
    "ERESOLVE": r"(?P<message>(?:peer|peerOptional|dev|optional|bundled)? ?\S+@\S.* from .+)",
    "EUSAGE": r"(?P<message>(?:Missing|Invalid): .+ lock file.*)",
    "EBADENGINE": r"engine (?P<message>Not compatible .+)",
}
"""The line that names what is wrong, where it is not the first one."""


def _read_npm(lines: Lines) -> Iterator[MainError]:
    texts = [match["text"] for line in lines if (match := _NPM.match(line))]
    code = next((text[5:].strip() for text in texts if text.startswith("code ")), "")
    said = texts
    if code == "ERESOLVE" and "Could not resolve dependency:" in texts:
        said = texts[texts.index("Could not resolve dependency:") :]
    pattern = _BY_CODE.get(code)
    matches = [match for text in said if pattern and (match := re.match(pattern, text))]
    messages = [match["message"] for match in matches] if code == "EUSAGE" else [m["message"] for m in matches[:1]]
    if not messages and not code.isdigit():
        messages = [_NPM_KEY.sub("", text) for text in texts if not _NPM_ABOUT.match(text) and _NPM_KEY.sub("", text)][
            :1
        ]
    path = next((text[5:].strip() for text in texts if text.startswith("path ")), "")
    named = re.search(r"[^\s'\"]*package(?:-lock)?\.json", " ".join(messages)) if code == "EJSONPARSE" else None
    path = path if path.endswith(".json") else named.group() if named else ""
    for message in messages:
        yield error(first_class(_CLASSES, f"{code} {message}", "dependency"), message, path)


_PNPM = re.compile(
    r"^\s*(?:\[?ERROR\]?\s+)?(?P<code>ERR_PNPM_\w+|ERROR(?=  .* in JSON at position))[\]:]?\s+(?P<message>.+)$"
)
_PEER = re.compile(r"^[\s│├└─]*✕ (?P<message>(?:unmet|missing) peer .+)$")
_PACKAGE_JSON = re.compile(r"(?P<path>/\S*?package\.json)")


def _read_pnpm(lines: Lines) -> Iterator[MainError]:
    peers = [match["message"] for line in lines if (match := _PEER.match(line))]
    for line in lines:
        if match := _PNPM.match(line):
            code = match["code"]
            if code in ("ERR_PNPM_RECURSIVE_RUN_FIRST_FAIL", "ERR_PNPM_LIFECYCLE"):
                continue
            messages = peers if code == "ERR_PNPM_PEER_DEP_ISSUES" and peers else [match["message"]]
            place = _PACKAGE_JSON.search(match["message"]) if "JSON" in line else None
            for message in messages:
                name = first_class(_CLASSES, f"{code} {message}", "dependency")
                yield error(name, message, place["path"] if place else "")


_YARN = re.compile(r"^error (?P<message>.+)$")
_YARN_WRAPPER = re.compile(r"Command failed with exit code|Found incompatible module|/node_modules/")
_BERRY = re.compile(r"^➤ (?P<code>YN\d{4}): [│└├·] (?:Error: )?(?P<message>(?![+-]|@@)\S.*)$")
_BERRY_SKIPPED = {"YN0000", "YN0002", "YN0060", "YN0086", "YN0076", "YN0013", "YN0019", "YN0085"}
_BERRY_END = re.compile(r"^(?:Usage Error|Internal Error|Syntax Error|Error): (?P<message>.+)$")


def _read_yarn(lines: Lines) -> Iterator[MainError]:
    for line in lines:
        match = _YARN.match(line) or _BERRY_END.match(line)
        if match is None:
            match = _BERRY.match(line)
            if match is None or match["code"] in _BERRY_SKIPPED:
                continue
        message = re.sub(r'^An unexpected error occurred: "(.*)"\.?$', r"\1", match["message"])
        if not _YARN_WRAPPER.search(message):
            place = _PACKAGE_JSON.search(message)
            name = first_class(_CLASSES, message, "dependency")
            yield error(name, message, place["path"] if place else "")


NPM = Reader("npm", _NPM, _read_npm)
PNPM = Reader("pnpm", re.compile(r".*\bERR_PNPM_[A-Z]| ERROR  .* in JSON at position"), _read_pnpm)
YARN = Reader(
    "yarn", re.compile(r"yarn (?:run|install|add) v\d|➤ YN\d{4}|(?:Usage|Internal|Syntax) Error: "), _read_yarn
)
