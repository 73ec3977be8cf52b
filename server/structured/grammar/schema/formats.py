"""The formats of JSON Schema Validation 2020-12, section 7.3, as patterns of whole texts.

A pattern matches only valid values. It may match fewer; a comment names the omitted ones. llguidance's own formats
are less strict, with February 29 in every year. A `format` that is not in `FORMATS` is an annotation, as the
specification requires.
"""

from collections.abc import Mapping

# RFC 3339, years 1 to 9999. Without leap seconds, which most validators reject.
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_AND_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR_AND_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_AND_MINUTE}:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+-]{_HOUR_AND_MINUTE})"

# RFC 3339, appendix A.
_TIME_PART = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DATE_PART = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = f"P(?:{_DATE_PART}(?:{_TIME_PART})?|{_TIME_PART}|[0-9]+W)"

# RFC 1123, without two hyphens in a row: RFC 5891 rejects some of these labels.
_LABEL = "(?:[a-zA-Z0-9](?:-?[a-zA-Z0-9])*)"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"

# RFC 5891, with lower-case letters of Latin-1, Greek and Cyrillic, and those of Japanese, Chinese and Korean.
_LETTERS = "ß-öø-ÿΐά-ώа-яё-џぁ-ゖァ-ヺ一-鿯가-힣"
_IDN_LABEL = f"(?:[a-z0-9{_LETTERS}](?:-?[a-z0-9{_LETTERS}]){{0,9}})"
_IDN_HOSTNAME = rf"(?:{_LABEL}|{_IDN_LABEL})(?:\.(?:{_LABEL}|{_IDN_LABEL}))*"

# RFC 5321, 4.1.2 and RFC 6531, without quoted local parts and address literals except IPv4. Lengths (4.5.3.1) are not
# bounded, because llguidance cannot combine so many counts with a client's pattern.
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_IDN_ATOM = f"[a-zA-Z0-9!#$%&'*+/=?^_`{{|}}~{_LETTERS}-]"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"

# RFC 4291, 2.2.
_GROUP = "[0-9a-fA-F]{1,4}"
_LAST_GROUPS = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_IPV6 = (
    f"(?:(?:{_GROUP}:){{6}}{_LAST_GROUPS}|::(?:{_GROUP}:){{5}}{_LAST_GROUPS}"
    f"|(?:{_GROUP})?::(?:{_GROUP}:){{4}}{_LAST_GROUPS}"
    f"|(?:(?:{_GROUP}:){{0,1}}{_GROUP})?::(?:{_GROUP}:){{3}}{_LAST_GROUPS}"
    f"|(?:(?:{_GROUP}:){{0,2}}{_GROUP})?::(?:{_GROUP}:){{2}}{_LAST_GROUPS}"
    f"|(?:(?:{_GROUP}:){{0,3}}{_GROUP})?::{_GROUP}:{_LAST_GROUPS}"
    f"|(?:(?:{_GROUP}:){{0,4}}{_GROUP})?::{_LAST_GROUPS}"
    f"|(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}|(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::)"
)

# RFC 3987, 2.2: characters besides ASCII, without planes above the first, which some validators reject.
_UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
_PRIVATE = "\ue000-\uf8ff"


def _uri(letters: str, private: str, *, relative: bool) -> str:
    """Return the pattern of RFC 3986, appendix A, with further letters and characters in queries for RFC 3987."""
    plain = f"a-zA-Z0-9._~!$&'()*+,;={letters}"

    def several(chars: str) -> str:
        return f"(?:[{plain}{chars}-]|%[0-9a-fA-F]{{2}})"

    segment = several(":@")
    host = rf"(?:\[(?:{_IPV6}|[vV][0-9a-fA-F]+\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\]|{several('')}*)"
    below = f"(?:/{segment}*)*"
    authority = f"//(?:{several(':')}*@)?{host}(?::[0-9]*)?{below}"
    absolute = f"/(?:{segment}+{below})?"
    found = f"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{authority}|{absolute}|{segment}+{below}|)"
    if relative:
        found = f"(?:{found}|{authority}|{absolute}|{several('@')}+{below}|)"
    return rf"{found}(?:\?{several(f':@/?{private}')}*)?(?:#{several(':@/?')}*)?"


# RFC 6570, without the operators that it reserves.
_VARIABLE = r"(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})(?:\.?(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2}))*(?::[1-9][0-9]{0,3}|\*)?"
_URI_TEMPLATE = (
    rf"(?:[!#$&(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|%[0-9a-fA-F]{{2}}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)

# RFC 6901, and draft-bhutton-relative-json-pointer-00 without index manipulation. The jsonschema library rejects a
# digit after 0.
_JSON_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_RELATIVE_JSON_POINTER = f"(?:0|[1-9]+0?)(?:#|{_JSON_POINTER})"

# ECMA 262, 22.2.1, as far as other dialects agree: two levels of groups, no named groups or characters, no references,
# no look-behind. Ranges in a class: digits, letters of one case, and escaped code points.
_DIGIT_PAIRS = "|".join(f"{n},[{n}-9]" for n in range(10))
_TENS_PAIRS = "|".join(f"{n}[0-9],[{n + 1}-9][0-9]" for n in range(1, 9))
_COUNTS = rf"\{{(?:[0-9]{{1,3}},?|{_DIGIT_PAIRS}|{_TENS_PAIRS}|[0-9],[1-9][0-9]{{1,2}}|[1-9][0-9],[1-9][0-9]{{2}})\}}"
_REPEATED = rf"(?:(?:[*+?]|{_COUNTS})\??)?"
_CODE_POINT = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
_CHARACTERS = r"\\[dDwWsS]"
_ESCAPED = rf"\\[tnrfv^$\\.*+?()\[\]{{}}|/]|{_CODE_POINT}"
_LETTER_RANGES = "|".join(
    f"{chr(first + n)}-[{chr(first + n)}-{chr(first + 25)}]" for first in (65, 97) for n in range(26)
)
_CODE_POINT_RANGES = r"\\x[0-7][0-9a-fA-F]-\\x[89a-fA-F][0-9a-fA-F]|\\x0[0-9a-fA-F]-\\x[1-9a-fA-F][0-9a-fA-F]"
_CODE_POINT_RANGES += (
    r"|\\u[0-7][0-9a-fA-F]{3}-\\u[89a-fA-F][0-9a-fA-F]{3}|\\u0[0-9a-fA-F]{3}-\\u[1-9a-fA-F][0-9a-fA-F]{3}"
)
_DIGIT_RANGES = "|".join(f"{n}-[{n}-9]" for n in range(10))
_IN_CLASS = rf"(?:[^\[\]\\^&~|-]|{_CHARACTERS}|{_ESCAPED}|\\-|{_DIGIT_RANGES}|{_LETTER_RANGES}|{_CODE_POINT_RANGES})"
_CLASS = rf"\[\^?(?:{_IN_CLASS}+-?|-)\]"
_ATOMS = rf"[^\^$\\*+?()\[\]{{}}|]|{_CHARACTERS}|{_ESCAPED}|{_CLASS}"
_ASSERTIONS = r"[\^$|]|\\[bB]"


def _regex(depth: int) -> str:
    inside = rf"\((?:\?:)?{_regex(depth - 1)}\)" if depth else ""
    atoms = f"{_ATOMS}|{inside}" if inside else _ATOMS
    return f"(?:(?:{atoms}){_REPEATED}|{_ASSERTIONS})*"


_HOSTNAME_LENGTHS = (r"[^.]{1,63}(?:\.[^.]{1,63})*", "(?s:.{1,253})")

FORMATS: Mapping[str, tuple[str, ...]] = {
    name: tuple(f"^(?:{pattern})$" for pattern in patterns)
    for name, patterns in {
        "date": (_DATE,),
        "date-time": (f"{_DATE}[Tt]{_TIME}",),
        "duration": (_DURATION,),
        "email": (rf"{_ATOM}+(?:\.{_ATOM}+)*@(?:{_HOSTNAME}|\[{_IPV4}\])",),
        "hostname": (_HOSTNAME, *_HOSTNAME_LENGTHS),
        "idn-email": (rf"{_IDN_ATOM}+(?:\.{_IDN_ATOM}+)*@{_IDN_HOSTNAME}",),
        "idn-hostname": (_IDN_HOSTNAME, *_HOSTNAME_LENGTHS),
        "ipv4": (_IPV4,),
        "ipv6": (_IPV6,),
        "iri": (_uri(_UCS, _PRIVATE, relative=False),),
        "iri-reference": (_uri(_UCS, _PRIVATE, relative=True),),
        "json-pointer": (_JSON_POINTER,),
        "regex": (_regex(2),),
        "relative-json-pointer": (_RELATIVE_JSON_POINTER,),
        "time": (_TIME,),
        "uri": (_uri("", "", relative=False),),
        "uri-reference": (_uri("", "", relative=True),),
        "uri-template": (_URI_TEMPLATE,),
        "uuid": ("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",),
    }.items()
}
"""The patterns of each format. A valid text matches all of them."""
