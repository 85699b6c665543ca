"""Lines of text that tell tokenizers apart; the same ones whenever it runs."""

import random

WORDS = """the quick brown fox jumps over lazy dogs while étudiants naïve coöperate Straße über façade hello
World README tokenization internationalization antidisestablishmentarianism HTTPServer snake_case camelCase kebab-case
don't it's we'll they've I'm you'd IT'S WE'LL THEY'VE Ain'T o'clock 'tis rock'n'roll""".split()
SCRIPTS = [
    "Привет мир, как дела сегодня", "Ελληνικά κείμενα με τόνους", "שלום עולם וברכה", "مرحبا بالعالم كيف حالك",
    "नमस्ते दुनिया आप कैसे हैं", "สวัสดีชาวโลกสบายดีไหม", "안녕하세요 세계 여러분", "日本語のテキストとカタカナ", "中文文本，没有空格。",
    "繁體中文與「引號」", "Xin chào thế giới", "Türkçe İstanbul ışık", "বাংলা ভাষা", "தமிழ் மொழி", "ქართული ენა",
    "Հայերեն լեզու", "አማርኛ ቋንቋ", "ພາສາລາວ", "ខ្មែរ", "မြန်မာ", "ไทย๑๒๓", "ﾊﾝｶｸ ｶﾀｶﾅ", "ＦＵＬＬ　ｗｉｄｔｈ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝓼𝓬𝓻𝓲𝓹𝓽",
]
EMOJI = [
    "😀", "🦀", "👍🏽", "👩‍👩‍👧‍👦", "🧑🏿‍🚀", "🏳️‍🌈", "🇩🇪🇯🇵", "❤️", "☎️", "1️⃣", "🫠", "👨🏻‍🦰", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "✈", "™", "⚠️", "🤷🏾‍♀️",
]
CODE = [
    "fn main() { println!(\"{:?}\", x); }", "for (int i = 0; i < n; ++i) {", "\treturn a[i] ?? b->c;", "if x != y and not z:",
    "SELECT * FROM t WHERE id='7';", "<div class=\"a b\">&nbsp;</div>", "#include <stdio.h>", "a += 0x1F & ~mask; // 42",
    "    def f(self, *args, **kw): pass", "{\"key\": [1, 2.5e-3, null]}", "$HOME/bin:/usr/bin", "https://example.org/a?b=c&d=%20#e",
    "C:\\Users\\x\\file.txt", "x = x**2 // 3 % 4", "/* comment */ *p++ = '\\n';", "@decorator\nclass A(B):\n    x: int = 1\n\n\n",
    "let re = /\\d{1,3}(?=\\D)/g;", "\\frac{a}{b}^{2}_{i}", "rm -rf ./build && make -j8 >> log 2>&1", "--flag=value -v+++",
]
SPACES = [" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r\n\r\n", " \n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u200b", "        ", "\x0b", "\x0c", "\x85", "\n\t\n "]
DIGITS = ["0", "7", "42", "123", "1234", "12345", "1234567", "1,234,567.89", "3.14159", "1e-5", "٣٤٥٦", "१२३४", "½¾", "Ⅻ", "x²", "2026-11-24", "192.168.0.1", "0b1010", "1234567890123", "12a34b", "①②③", "007"]
CONTROLS = ["\x00", "\x01", "\x07", "\x1b[0m", "\x7f", "\ufeff", "\u200d", "\u200e", "\u202e", "\ufffd", "\ue000", "\U000e0001", "\x1c", "\xad"]
COMBINING = ["e\u0301", "o\u0308\u0304", "Z\u0351\u036b\u0343", "a\u0323\u0302", "\u0301", " \u0308x", "n\u0303o", "क\u094dष", "ก\u0e49\u0e33"]
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_end|", "<s>", "</s>", "<unk>", "<|end|>", "<|user|>", "<|assistant|>\n",
    "<|eot_id|>", "[INST]", "<0x0A>", "<|im_start|>system\n", "<|endof", "<<|im_end|>>", "▁", "Ġ", "<file_sep>", "<|system|>  x",
    "< |endoftext|>", "<|ENDOFTEXT|>", "<pad>", "[PAD]", "IMGIMGABZ", "<sentinel:12>",
]
PUNCTUATION = ["...", "!?", "—", "“quoted”", "(a)", "[b]", "{c}", "«d»", "¿qué?", "…", "、。", "！？", "$5+€6=£7", "a/b\\c|d", "~`^", "'", "\"\"", "''s", "’s", "#@%&*", "://", ";;", "-->", "=>", "!!!\n", "…\n/"]


def line(rng):
    """A line of one to nine parts, from one kind mostly."""
    kinds = [WORDS, SCRIPTS, EMOJI, CODE, DIGITS, CONTROLS, COMBINING, SPECIAL, PUNCTUATION]
    main = rng.choice(kinds)
    parts = []
    for _ in range(rng.randint(1, 9)):
        part = rng.choice(main if rng.random() < 0.6 else rng.choice(kinds))
        if rng.random() < 0.1:
            part = rng.choice([part.upper(), part.title(), part[::-1] if part.isascii() else part, part * 3])
        parts.append(part)
        if rng.random() < 0.7:
            parts.append(" " if rng.random() < 0.6 else rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 5]))
    return "".join(parts)[:160]


def lines(count=1000, seed=20261124):
    """`count` different lines that are never empty."""
    rng = random.Random(seed)
    found = {}
    for part in WORDS + SCRIPTS + EMOJI + CODE + SPACES + DIGITS + CONTROLS + COMBINING + SPECIAL + PUNCTUATION:
        found[part] = None
    while len(found) < count:
        found[line(rng)] = None
    return list(found)[:count]
