"""
The detectors of attacks on what is behind a tool: each takes time in proportion to the text.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any, Final, cast
from urllib.parse import unquote

from ._detectors import ARGUMENTS, PROMPT, Detector, Find, Span, as_seen, known, known_patterns

_TOOLS: Final = frozenset({PROMPT, ARGUMENTS})


def _any_of(*needles: str) -> Callable[[str], bool]:
    def may_match(text: str) -> bool:
        low = text.lower()
        return any(needle in low for needle in needles)

    return may_match


def _decoded(text: str) -> str | None:
    # As a web server or a browser would read it; None if that is no other text.
    if "%" not in text and "&#" not in text and "&lt" not in text:
        return None
    decoded = html.unescape(unquote(unquote(text)))
    return None if decoded == text else decoded


def _attack(may_match: Callable[[str], bool], *sources: str) -> Find:
    pattern = re.compile("|".join(f"(?:{source})" for source in sources), re.IGNORECASE)

    def find(text: str) -> Iterable[Span]:
        found = [match.span() for match in pattern.finditer(text)] if may_match(text) else []
        if not found and (decoded := _decoded(text)) is not None and may_match(decoded):
            return [(0, len(text))] if pattern.search(decoded) else []
        return found

    known_patterns.append(pattern)
    return find


# A command is no attack: what is listed here comes after something that ends another command, or stands where
# only a shell would look at it.
_SEPARATOR: Final = r"(?:;|\|{1,2}|&{1,2}|\$\(|(?<=[\w=:/.,;|&'\"-])`)[ \t]{0,8}+"
_SLASH: Final = r"[/\\]"
_SENSITIVE: Final = (
    rf"(?:{_SLASH}?etc{_SLASH}(?:passwd|shadow|hosts|sudoers|group|crontab|issue)\b"
    rf"|{_SLASH}?proc{_SLASH}(?:self|version|\d{{1,6}})\b"
    rf"|{_SLASH}?(?:root|winnt|web-inf){_SLASH}"
    rf"|{_SLASH}?var{_SLASH}(?:log|www|run){_SLASH}"
    rf"|{_SLASH}?windows{_SLASH}(?:win\.ini|system32|system\.ini)"
    rf"|{_SLASH}?(?:boot\.ini|web\.config)\b"
    rf"|[^\s'\";|&<>]{{0,80}}(?:{_SLASH}|(?<![\w.]))"
    rf"(?:\.ssh{_SLASH}|id_rsa|\.aws{_SLASH}|\.env\b(?!\.(?:example|sample|template|dist)\b)|\.htpasswd"
    rf"|\.git{_SLASH}config|\.bash_history))"
)
_IFS: Final = r"(?:[ \t]{1,8}|\$\{?IFS\}?(?:\$9)?|<)"
_COMMAND: Final = (
    rf"(?:(?:cat|head|tail|less|more|nl|tac|strings|base64|xxd|od|cp|mv|scp)"
    rf"(?:{_IFS}-[\w-]{{1,12}}+(?:{_IFS}\d{{1,6}}+)?){{0,2}}|grep{_IFS}[\w'\"-]{{1,40}}){_IFS}['\"]?{_SENSITIVE}",
    r"rm[ \t]{1,4}-[a-z]{1,6}\b",
    r"(?:curl|wget)[ \t]{1,4}(?:-[\w-]{1,20}[ \t]|['\"]?(?:https?|ftp)://"
    r"|['\"]?[\w-]{1,60}\.[\w.-]{1,60}[/:]|\$)",
    r"(?:nc|ncat|netcat)[ \t]{1,4}(?:-[a-z]{1,6}\b|[\w.-]{1,80}[ \t]{1,4}\d{2,5}\b)",
    r"(?:ba|z|k|da|c)?sh[ \t]{1,4}(?:-[ci]\b|<)",
    r"(?:whoami|ifconfig|ipconfig|systeminfo|tasklist|printenv)\b(?![ \t]{0,20}\|[^|])",
    r"uname[ \t]{1,4}-[a-z]\b",
    r"(?:python[23]?|perl|ruby|php|node|lua)[ \t]{1,4}-[cer][ \t]",
    r"(?:powershell|pwsh)(?:\.exe)?[ \t]{1,4}[-/\"'(]",
    r"cmd(?:\.exe)?[ \t]{1,4}/[ck]\b",
    r"(?:certutil|bitsadmin|mshta|regsvr32|rundll32)(?:\.exe)?[ \t]{1,4}[-/\w]",
    r"(?:chmod|chown)[ \t]{1,4}(?:-R[ \t]{1,4})?(?:0?[0-7]?777|[ugoa]{0,3}\+s|[46]7\d\d|root)\b",
    r"(?:nslookup|dig|ping|traceroute)[ \t]{1,4}(?:-[a-z]\b|[\w-]{1,60}\.[\w.-]{1,60}|`|\$\()",
    r"sleep[ \t]{1,4}\d{1,5}[smh]?[ \t]{0,8}(?:$|[;&|)#`])",
    r"ls(?:[ \t]{1,4}-[a-z]{1,6}\b|[ \t]{1,4}/|[ \t]{0,4}(?:$|[;&|)#`]))",
    r"id[ \t]{0,4}[)`]",
    r"(?<=[\d;][;|&])id[ \t]{0,4}(?:$|[;#&])",
    r"(?<=\d[;|&][ \t])id[ \t]{0,4}(?:$|[;#&])",
    r"(?<=\d[ \t][;|&][ \t])id[ \t]{0,4}(?:$|[;#&])",
    r"(?:ps[ \t]{1,4}(?:aux|-ef)|netstat[ \t]{1,4}-[a-z]{1,6})\b",
    r"(?:mkfs(?:\.\w{2,5})?[ \t]|dd[ \t]{1,4}if=|mkfifo[ \t]{1,4}/|crontab[ \t]{1,4}-[lre]"
    r"|useradd[ \t]{1,4}[-\w])",
    r"(?:shutdown|halt|reboot|poweroff)[ \t]{1,4}(?:-[a-z]\b|/[rs]\b)",
    r"(?:kill|pkill|killall)[ \t]{1,4}-(?:9|kill)\b",
    r"(?:dir|type|del|copy|more)[ \t]{1,4}(?:/[a-z][ \t]{1,4}){0,3}(?:[a-z]:[\\/]|%\w{1,20}%|\.\.\\)",
    r"net[ \t]{1,4}(?:user|localgroup)(?:[ \t]{0,4}$|[ \t]{1,4}(?:/"
    r"|\w{1,40}[ \t]{1,4}\S{1,40}[ \t]{1,4}/add))",
    r"(?:echo|printf)[ \t][^\n|]{1,200}(?:>{1,2}[ \t]{0,4}(?:/(?:etc|var|tmp|root|home|usr)/|~/"
    r"|[\w./-]{1,60}\.(?:php|jsp|aspx?|sh)\b)"
    r"|\|[ \t]{0,4}(?:base64[ \t]{1,4}-d|(?:ba|z|da)?sh\b))",
    r"sudo[ \t]{1,4}(?:rm|su|bash|sh|cat|chmod|passwd|visudo)\b",
    r"find[ \t]{1,4}/[^\n]{0,80}-(?:exec|delete|perm)\b",
    r"(?:/usr)?/bin/(?:ba|z|k|da)?(?:sh|cat|id|nc|ls|rm)\b",
    r"(?:env|set|export)[ \t]{0,4}\|",
    r"eval[ \t]{1,4}[\"'`$]",
)
_find_shell = _attack(
    _any_of(";", "|", "&", "`", "$(", "/dev/tcp/", "rm ", "cat ", "mkfifo ", ">&", "nc -", "whoami", "\nid"),
    rf"{_SEPARATOR}(?:{'|'.join(_COMMAND)})",
    r"\|[ \t]{0,8}(?:sudo[ \t]{1,4})?(?:ba|z|k|da)?sh\b(?![ \t]{0,20}\|)(?=[ \t]{0,8}(?:$|[-\n;&)\"'`]))",
    rf"[\r\n][ \t]{{0,8}}(?:cat[ \t]{{1,4}}{_SENSITIVE}|rm[ \t]{{1,4}}-rf?[ \t]{{1,4}}[/~]"
    rf"|whoami[ \t]{{0,8}}$|id[ \t]{{0,8}}\Z)",
    r"/dev/(?:tcp|udp)/[\w.$-]{1,80}/\d",
    r"\bbash[ \t]{1,4}-i[ \t]{1,4}>&",
    r"\bnc[ \t]{1,4}-[a-z]{0,4}[ec][ \t]{1,4}(?:/bin/|cmd)",
    r":\(\)[ \t]{0,4}\{[ \t]{0,4}:\|:&[ \t]{0,4}\}",
    r"\A\s{0,8}(?:sudo[ \t]{1,4})?rm[ \t]{1,4}(?:-[a-z-]{1,20}[ \t]{1,4}){1,3}(?:/|~|/\*|\*"
    r"|\$HOME)/?(?:[ \t]{1,4}--[a-z-]{1,30}){0,2}\s{0,8}\Z",
    rf"\A\s{{0,8}}cat[ \t]{{1,4}}{_SENSITIVE}",
    r"(?:\{|\b)cat(?:,|\$\{?IFS\}?)/?etc/",
)

_GAP: Final = r"(?:[\s+]|/\*[^*]{0,40}\*/|--[ \t]?\n){1,8}+"
_NO_GAP: Final = r"(?:[\s+(]|/\*[^*]{0,40}\*/){0,8}+"
_QUOTE: Final = r"[\"'`\u2019]"
_NAME: Final = r"[\w.\[\]`\"@]{1,60}+"
_sql = (
    # A quote is closed, and what follows is always true, or always false.
    _attack(
        _any_of(
            "=",
            "<",
            ">",
            "like",
            "--",
            "#",
            "/*",
            "true",
            "false",
            "sleep",
            "benchmark",
            "exists",
            "ascii",
            "substr",
            " in",
        ),
        rf"{_QUOTE}\)?{_NO_GAP}(?:or|and|\|\||&&|xor){_NO_GAP}(?:not{_GAP})?"
        rf"(?:{_QUOTE}(?:[^'\"\s]{{0,20}}){_QUOTE}?[ ]{{0,4}}(?:(?:=|<|>)[ ]{{0,4}}(?:{_QUOTE}|\d|\()"
        rf"|like\b|in[ ]?\()"
        rf"|\w{{1,40}}{_GAP}like{_GAP}'%"
        rf"|\d{{1,9}}{_QUOTE}?[ ]{{0,4}}(?:=|<|>|like\b|--|#|/\*)|(?:true|false)\b"
        r"|(?:sleep|benchmark|pg_sleep|exists|ascii|substring|length)\b[ ]{0,4}\()",
    ),
    # A number is followed by a comparison of constants, or stands before a function that a value never calls.
    _attack(
        _any_of("=", "sleep", "benchmark", "exists", "ascii", "substr"),
        rf"(?:\b\d{{1,12}}|\)){_GAP}(?:(?:or|\|\|){_NO_GAP}\d{{1,9}}[ ]{{0,4}}=[ ]{{0,4}}\d{{1,9}}\b"
        rf"|and{_GAP}\d=\d\b)",
        rf"(?:\b\d{{1,12}}|\)){_GAP}(?:or|and){_NO_GAP}(?:sleep|benchmark|pg_sleep|exists|ascii"
        rf"|substring)[ ]{{0,4}}\(",
        rf"\A\s{{0,8}}(?:or|and){_GAP}\d{{1,9}}[ ]{{0,4}}=[ ]{{0,4}}\d",
    ),
    # A condition that asks another table.
    _attack(
        _any_of("select"),
        rf"(?:{_QUOTE}\)?|\b\d{{1,12}}\)?)[ ]{{0,4}}(?:or|and|\|\||xor)[ ]{{0,4}}\([ ]{{0,4}}select\b"
        rf"{_GAP}(?:[*\d]|\w{{1,40}}+\(|{_NAME}{_GAP}from{_GAP}{_NAME}"
        rf"(?:{_GAP}(?:where|limit)\b|[ )]{{0,4}}(?:[=<>#]|--)))",
    ),
    # A second statement.
    _attack(
        _any_of(";"),
        rf"(?:{_QUOTE}\)?|\b\d{{1,12}}\)?|\))[ ]{{0,4}};{_NO_GAP}(?:"
        rf"drop{_GAP}(?:table|database|schema|view|user){_GAP}\w"
        rf"|delete{_GAP}from{_GAP}{_NAME}{_NO_GAP}(?:;|--|#|where\b|\Z)"
        rf"|insert{_GAP}into{_GAP}{_NAME}{_NO_GAP}(?:\(|values\b|select\b|[\w,' ]{{1,60}}\)|['\"\d])"
        rf"|update{_GAP}{_NAME}{_GAP}set{_GAP}{_NAME}{_NO_GAP}="
        rf"|alter{_GAP}(?:table|user|login){_GAP}{_NAME}{_GAP}(?:add|drop|modify|rename|identified|with)\b"
        rf"|truncate{_GAP}(?:table{_GAP}\w|{_NAME}{_NO_GAP}(?:;|--))"
        rf"|create{_GAP}(?:user|table|login){_GAP}{_NAME}{_NO_GAP}(?:\(|identified\b|with\b|as\b|;|--"
        rf"|[a-z]{{3,8}}\)|\w{{1,40}}{_GAP}int)"
        rf"|exec(?:ute)?{_NO_GAP}(?:xp_|sp_|master|immediate|@|['\"])"
        rf"|declare{_GAP}@|shutdown{_NO_GAP}(?:;|--|\Z)|grant{_GAP}(?:all|select|execute|dba)\b"
        rf"|waitfor{_GAP}(?:delay|time)"
        rf"|select{_GAP}(?:[*@(]|\d|null\b|\w{{1,40}}\(|{_NAME}{_NO_GAP}(?:,|from\b)))",
        r";[ ]{0,4}(?:waitfor\s{1,4}delay|exec\s{1,4}(?:master\.{1,2})?(?:dbo\.)?xp_|shutdown\s{1,4}with)",
    ),
    # The rest of the statement is cut off.
    _attack(
        _any_of("--", "#", "/*", "having", "order"),
        rf"\A[\w.@-]{{1,64}}(?:{_QUOTE}\){{0,3}}|(?<!s){_QUOTE}\){{0,3}}[ ]{{1,4}})(?:--|#"
        rf"|/\*)[^\n]{{0,10}}\Z",
        rf"(?:{_QUOTE}\){{0,3}}|\b\d{{1,12}}\)?){_GAP}(?:having|group{_GAP}by"
        rf"|order{_GAP}by){_GAP}\d{{1,4}}[ ]{{0,4}}(?:--|#|=)",
    ),
    # What reads or runs things beyond the table, where a value would stand.
    _attack(
        _any_of(
            "sleep",
            "benchmark",
            "extractvalue",
            "updatexml",
            "load_file",
            "receive_message",
            "utl_",
            "xp_cmdshell",
        ),
        rf"(?:{_QUOTE}\)?|\b\d{{1,12}}\)?){_NO_GAP}(?:;|,|\|\||or|and|\+|-|xor"
        rf"|select){_NO_GAP}(?:select{_GAP})?"
        r"(?:sleep|pg_sleep|benchmark|extractvalue|updatexml|load_file|dbms_pipe\.receive_message"
        r"|utl_http\.request|utl_inaddr\.get_host_address|xp_cmdshell)[ ]{0,4}\(",
    ),
    _attack(
        _any_of("union", "un/*", "outfile", "dumpfile"),
        rf"\bunion{_GAP}(?:(?:all|distinct){_GAP})?select{_GAP}(?:null|\d|@@|char\(|concat|user\("
        rf"|version\(|database\(|load_file)"
        r"[^\n]{0,200}(?:--|#|/\*|information_schema|null[ ]{0,4}\Z|\d[ ]{0,4}\Z)",
        r"\binto\s{1,4}(?:out|dump)file\s{1,4}['\"]",
        r"\bun/\*[^*]{0,20}\*/ion\b|\bunion/\*!?|/\*!\d{0,5}[ ]?union\b",
    ),
)
_UNION: Final = known(
    rf"\bunion{_GAP}(?:(?:all|distinct){_GAP})?select{_GAP}"
    rf"(?:null\b|\d|[@*'\"(]|[\w.]{{1,60}}(?:\(|[ ]{{0,4}},|{_GAP}from\b))",
    re.IGNORECASE,
)
_EARLIER: Final = 2000


def _find_sql(text: str) -> Iterable[Span]:
    found = [span for find in _sql for span in find(text)]
    decoded = _decoded(text)
    for source in (text, decoded):
        if source is None or found or "union" not in (low := source.lower()):
            continue
        for match in _UNION.finditer(source):
            # Without a SELECT before it, it goes on somebody else's.
            if "select" not in low[max(0, match.start() - _EARLIER) : match.start()]:
                found.append(match.span() if source is text else (0, len(text)))
                break
    return found


_find_path = _attack(
    _any_of(
        "..",
        "/etc/",
        "%00",
        "\0",
        "win.ini",
        "/proc/",
        "boot.ini",
        ".ssh",
        ".aws",
        "%c0",
        "%25",
        "\\windows\\",
        "id_rsa",
        "php://",
        "expect://",
        "zip://",
    ),
    rf"(?:\.\.[/\\]{{1,2}}+){{1,20}}+(?:[^\s/\\]{{1,40}}+[/\\]){{0,4}}{_SENSITIVE}",
    r"(?:\.\.[/\\]{1,2}){6}",
    r"(?:\.{4}//|\.{4}\\\\|\.\.;/){1,20}",
    r"\.\.(?:%c0%af|%c1%9c|%25(?:25){0,3}(?:2f|5c)|%u2215|%u2216|%e0%80%af)",
    r"(?:%c0%ae|%25(?:25){0,3}2e){2}",
    r"(?:\.\.(?:%2f|%5c)|%2e%2e(?:[/\\]|%2f|%5c)){2}",
    rf"\A\s{{0,8}}(?:file:/{{0,3}}+)?(?:[a-z]:)?{_SLASH}(?:etc/(?:passwd|shadow|sudoers|gshadow)|proc/self/"
    rf"|windows{_SLASH}(?:win\.ini|system32{_SLASH}(?:config|drivers{_SLASH}etc){_SLASH})"
    rf"|[^\s'\";|&<>]{{0,80}}{_SLASH}(?:\.ssh|\.aws){_SLASH})[^\s'\";|&<>]{{0,60}}\s{{0,8}}\Z",
    r"[\w./\\-]\x00",
    r"\bfile:/{2,3}(?:etc|proc|root|windows|c:[/\\]windows)[/\\]",
    r"\bphp://(?:filter|input)|\bexpect://|\bzip://[^\s]{1,80}#",
)

_CALL: Final = (
    r"(?:(?:alert|prompt|confirm|eval|fetch|import|atob|settimeout|string\.fromcharcode"
    r"|xmlhttprequest)\s{0,4}[(`]"
    r"|(?:document\s{0,4}(?:\.\s{0,4}(?:cookie|location|domain|write|body|referrer)\b|\[)"
    r"|window\s{0,4}(?:\.\s{0,4}(?:location|open|name|atob|eval|alert|fetch)\b|\[))"
    r"|location\s{0,4}[.=(\[]|new\s{1,4}image\b|string\.fromcharcode"
    r"|this\.src\b"
    r"|(?:top|self)\[)"
)
_find_script = _attack(
    _any_of("<", "script:", "data:text/html", "expression(", "srcdoc"),
    rf"<script\b[^>]{{0,300}}+>[^<]{{0,300}}?{_CALL}",
    r"<script\b[^>]{0,200}\bsrc\s{0,4}=\s{0,4}(?:['\"]?(?:https?:)?//|['\"]?data:)",
    rf"<[a-z]{{1,20}}+[\s/][^>]{{0,120}}?\bon[a-z]{{3,20}}\s{{0,4}}=\s{{0,4}}['\"`]?[^>]{{0,40}}{_CALL}",
    rf"\b(?:java|vb|live)\s{{0,4}}script\s{{0,4}}:\s{{0,8}}(?:/{{2,3}})?[^\s]{{0,20}}(?:{_CALL}|msgbox\b)",
    r"\bdata:text/html[^\s,]{0,40},[^\s]{0,40}(?:<|%3c|[A-Za-z0-9+/]{20})",
    r"<(?:iframe|embed|object|frame|base|link|form|a|img|input|button)\b[^>]{0,200}\b(?:src|href|data"
    r"|action|formaction)"
    r"\s{0,4}=\s{0,4}['\"]?\s{0,8}(?:javascript|vbscript|data:text/html)",
    r"<(?:iframe|embed|object)\b[^>]{0,200}\bsrcdoc\s{0,4}=[^>]{0,40}<",
    r"<meta\b[^>]{0,200}http-equiv\s{0,4}=\s{0,4}['\"]?refresh[^>]{0,200}(?:javascript|data):",
    r"\bstyle\s{0,4}=[^>]{0,80}expression\s{0,4}\(",
    r"<iframe\b[^>]{0,200}\bsrc\s{0,4}=\s{0,4}['\"]?(?:https?:)?//[^>]{0,200}(?:width"
    r"|height)\s{0,4}=\s{0,4}['\"]?0\b",
)

_find_code = _attack(
    _any_of(
        "${",
        "{{",
        "<%",
        "#{",
        "<?",
        "__",
        "jndi",
        "os.system",
        "subprocess",
        "runtime",
        "{%",
        "eval",
        "exec",
        "<!entity",
        "<!doctype",
        "system\n",
        "popen\n",
    ),
    r"\$\{jndi:",
    r"\$\{(?:\$\{[^}\s]{0,20}\}|[jndi]){1,8}+[^\s]{0,40}(?:ldaps?|rmi|dns|iiop|:\$\{[^}\s]{0,20}\}dap)://",
    r"(?:\{\{|\$\{|#\{|<%=|\*\{|@\()[ ]{0,4}\d{1,9}[ ]{0,4}\*[ ]{0,4}['\"]?\d{1,9}['\"]?[ ]{0,4}(?:\}|%>|\))",
    r"\{[{%][^\n}]{0,120}(?:__class__|__mro__|__subclasses__|__globals__|__builtins__|config\.items\("
    r"|request\.application|cycler\.|lipsum)",
    r"\b__import__[ ]{0,4}\([ ]{0,4}['\"](?:os|subprocess|socket|pty|shutil|sys|builtins)['\"]",
    r"(?:\(\)|''|\"\"|\[\]|\{\})\.__class__\.(?:__base__|__mro__|__bases__)",
    r"<\?(?:php|=)?[^\n]{0,80}\b(?:system|exec|shell_exec|passthru|eval|assert|popen"
    r"|proc_open)[ ]{0,4}\([ ]{0,4}(?:\$_|['\"])",
    r"\$\{[^\n]{0,80}(?:T\(java|java\.lang\.|getRuntime|ProcessBuilder)|T\(java\.lang\.Runtime\)"
    r"|Runtime\.getRuntime\(\)\.exec\(['\"](?:cmd|/bin|calc|curl|wget|bash|nc|id|whoami)",
    r"\b(?:eval|exec)[ ]{0,4}\([ ]{0,4}(?:base64\.|codecs\.|compile\(|__import__|bytes\.fromhex|atob\("
    r"|String\.fromCharCode)",
    r"\{php\}|<%[^\n%]{0,80}(?:Runtime|ProcessBuilder|eval[ ]{0,4}\(?request|execute[ ]{0,4}\(?request"
    r"|system[ ]?\(|IO\.popen|`[a-z])",
    r"\{\{[^\n}]{0,80}(?:constructor\.constructor|_self\.env|\|filter\(['\"](?:system|exec)"
    r"|registerUndefinedFilterCallback)",
    r"cos\nsystem\n|c__builtin__\neval|c(?:posix|os|subprocess)\n(?:system|popen|Popen)\n",
    r"<!ENTITY\b[^>]{0,200}?\bSYSTEM[ ]{1,4}['\"](?:file|https?|ftp|php|expect|gopher)://",
)

# A host in a URL, with what stands before it.
_URL: Final = known(
    r"\b(?:jar:)?([a-z][a-z0-9+.-]{1,10}):[/\\]{2,3}([^\s/?#!\\\"'<>]{1,255})([^\s\"'<>]{0,200})",
    re.IGNORECASE,
)
_METADATA: Final = frozenset(
    {
        "metadata.google.internal",
        "metadata.goog",
        "metadata",
        "instance-data",
        "instance-data.ec2.internal",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "168.63.129.16",
        "rancher-metadata",
        "kubernetes.default.svc",
        "kubernetes.default",
    }
)
_SMUGGLING: Final = frozenset({"gopher", "dict", "tftp", "netdoc", "ldap", "ldaps"})
_REBINDING: Final = (".nip.io", ".sslip.io", ".xip.io", ".localtest.me", ".lvh.me", ".rbndr.us")
_LOCAL_NAMES: Final = frozenset(
    {"localhost", "localhost.localdomain", "localtest.me", "lvh.me", "ip6-localhost"}
)
_NUMERIC: Final = known(
    r"(?:0x[0-9a-f]{1,8}|\d{1,12})(?:\.(?:0x[0-9a-f]{1,8}|\d{1,12})){0,3}\Z", re.IGNORECASE
)


def _find_ssrf(text: str) -> Iterable[Span]:
    is_read = "://" in text or ":\\\\" in text
    if not is_read and "%3a%2f%2f" not in text.lower():
        host = re.split("[/:]", text.strip().lstrip("/"), maxsplit=1)[0]
        return [(0, len(text))] if host in _METADATA_ADDRESSES and len(text.split()) == 1 else []
    text_read = text if is_read else unquote(text)
    found: list[Span] = []
    for match in _URL.finditer(text_read):
        # An address of one's own network is what a URL leads to if it is the whole of a value; in prose,
        # people write of their own machines.
        whole = not text_read[: match.start()].strip() and not text_read[match.end() :].strip()
        if _is_forged(match[1].lower(), match[2].lower(), whole=whole):
            found.append(match.span() if text_read is text else (0, len(text)))
    return found


_METADATA_ADDRESSES: Final = frozenset({"169.254.169.254", "metadata.google.internal", "169.254.170.2"})


def _is_forged(scheme: str, authority: str, *, whole: bool) -> bool:
    if scheme in _SMUGGLING:
        return whole or ":" in authority
    if scheme not in {"http", "https", "ftp", "ws", "wss"}:
        return False
    userinfo, _, host = authority.rpartition("@")
    # As browsers read it: https://www.unicode.org/reports/tr46/.
    host = unicodedata.normalize("NFKC", unquote(host)).replace("\u3002", ".")
    host = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    host = host.rstrip(".,;)")
    if host in _METADATA or host.endswith((".compute.internal", *_REBINDING)):
        return True
    plain, address = _address_of(host)
    if address is None:
        return host in _LOCAL_NAMES and (whole or bool(userinfo))
    if address.is_link_local or str(address) in _METADATA:
        return True
    inside = not address.is_global
    return inside and (whole or not plain or bool(userinfo))


def _address_of(host: str) -> tuple[bool, Any]:
    # Whether it is written as addresses are, and the address; decimal, octal and hexadecimal forms are what
    # resolvers still take.
    try:
        address: Any = ip_address(host)
    except ValueError:
        if not _NUMERIC.match(host):
            return False, None
    else:
        mapped = getattr(address, "ipv4_mapped", None)
        return mapped is None, address if mapped is None else mapped
    parts = [_number(part) for part in host.split(".")]
    *leading, last = parts
    if None in parts or any(cast("int", part) > 255 for part in leading):
        return False, None
    value = sum(cast("int", part) << (24 - 8 * index) for index, part in enumerate(leading)) + cast(
        "int", last
    )
    # A small number as a host is no trick, but zero is: it leads to this machine.
    return False, ip_address(value) if value < 2**32 and (value >= 2**24 or value == 0) else None


def _number(text: str) -> int | None:
    low = text.lower()
    try:
        return (
            int(low, 16)
            if low.startswith("0x")
            else int(low, 8 if low.startswith("0") and low != "0" else 10)
        )
    except ValueError:
        return None


DEFAULT_BLOCKED_PATTERNS: Final[dict[str, Detector]] = {
    name: Detector(as_seen(find), _TOOLS, stable=True)
    for name, find in {
        "shell_injection": _find_shell,
        "sql_injection": _find_sql,
        "path_traversal": _find_path,
        "script_injection": _find_script,
        "code_injection": _find_code,
        "ssrf": _find_ssrf,
    }.items()
}
"""Known forms of attacks on what is behind a tool, looked for in prompts and arguments."""
