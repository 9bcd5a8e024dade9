"""Names and texts made to hurt: group ids, metadata, principals and errors of Kafka may hold any of these."""

NASTY = {
    "quote": "o'neil",
    "query": "x' UNION ALL SELECT 1, 2, 3 FROM range(1000) -- ",
    "always": "' OR '1' = '1",
    "backslash": "ends with \\",
    "escapes": r"\' \n \u0027 %_",
    "braces": "{source} {} {0.__class__} {{x}}",
    "variables": "${env:HOME} ${spark.app.name} ${system:user.home}",
    "markup": "<script>alert(1)</script>&amp;<img src=x onerror=alert(1)>",
    "formula": r"$\frac{$ $\href{javascript:alert(1)}{x}$",
    "NUL": "a\0b",
    "lines": "a\nb\rc\u2028d",
    "terminal": "\x1b]0;title\x07\x1b[31mred",
    "direction": "\u202egnp.exe\u2066",
    "from right to left": "שלום עולם مرحبا",
    "beyond the plane": "\U0001f600\U0001d54f",
    "huge": "g'" * 100_000,
}
EVERYTHING = "".join(text for name, text in NASTY.items() if name != "huge")
