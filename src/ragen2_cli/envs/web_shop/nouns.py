"""Which words of a product title name the thing: a rule in place of a part-of-speech tagger.

A word counts as a noun when it is alphabetic, at least three letters long, not a function word, not
a unit, color, size or number word, not one of the shop's usual adjectives, and does not end like an
adjective or adverb (-able, -ible, -ful, -less, -ous, -ly, -proof, -resistant, -free). A plural
counts as its singular. The tagger of the original may differ on single words; the score only reads
the share.
"""

import re
from collections.abc import Callable
from functools import lru_cache

_WORD = re.compile(r"[a-z]+")
_ENDINGS = ("able", "ible", "ful", "less", "ous", "ly", "proof", "resistant", "free")
_NOT_NOUN_WORDS = """
    a an and are as at be by for from has in into is it its no not of off on one or our out over
    per so than that the their them then this to two three four five six up use used uses very via
    was we which will with without you your all any both each every more most new non only other
    own some such too
    black white red blue green yellow pink purple grey gray brown beige navy gold golden silver
    orange teal ivory rose wine olive multicolor dark light deep bright pale
    small medium large big mini tall short long wide narrow thin thick heavy slim regular queen
    king twin full half extra xs xl xxl
    inch inches foot feet oz ounce ounces pound pounds lbs gram grams kg mm cm meter liter gallon
    pack packs count piece pieces pcs set sets size sizes
    soft hard warm cool hot cold fresh clean easy quick fast slow strong smooth rough natural
    organic classic modern vintage elegant compact portable durable sturdy foldable deluxe premium
    casual formal outdoor indoor stylish cute simple high low quality best better good great perfect
    fit loose tight dry wet flat round square waterproof wireless electric digital manual automatic
    professional original real true pure whole made machine washed
    hanging standing folding sleeping
"""
_NOT_NOUNS = frozenset(_NOT_NOUN_WORDS.split())

Tagger = Callable[[str], set[str]]


def nouns(title: str) -> set[str]:
    """Return the title's words that the rule takes for nouns, lower case and singular."""
    return {
        _singular(word)
        for word in _WORD.findall(title.lower())
        if len(word) >= 3 and word not in _NOT_NOUNS and not word.endswith(_ENDINGS)
    }


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("shes", "ches", "xes", "sses")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def title_overlap(wanted: str, bought: str, tagger: Tagger = nouns) -> float:
    """Share of the wanted title's nouns that the bought title has too, in [0, 1].

    Args:
        wanted: Title of the goal's product.
        bought: Title of the purchase.
        tagger: Title to its set of nouns; the default is this module's rule.

    Returns:
        0.2 when the wanted title has no noun at all (neither a match nor a mismatch).
    """
    wanted_nouns = tagger(wanted)
    if not wanted_nouns:
        return 0.2
    return len(wanted_nouns & tagger(bought)) / len(wanted_nouns)


@lru_cache(maxsize=2)
def spacy_tagger(model: str = "en_core_web_sm") -> Tagger:
    """Return a tagger that asks spaCy for nouns and proper nouns, as the original scorer does.

    Args:
        model: Name of an installed spaCy pipeline.

    Raises:
        UserError: When spaCy or the pipeline is not installed.
    """
    from ragen2_cli.errors import UserError

    try:
        import spacy

        pipeline = spacy.load(model)
    except (ImportError, OSError) as error:
        raise UserError(
            f"tagger: spaCy with the pipeline {model!r} is not installed; install it or leave "
            "the tagger out to use the built-in noun rule"
        ) from error
    return lambda title: {t.text.lower() for t in pipeline(title) if t.pos_ in ("NOUN", "PROPN")}
