"""Words of prompts, tools and tables: stems, synonyms in English and German, typing errors.

Knows single words only; what a sentence means is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

_SYNONYMS = """\
population pop people person inhabitant resident einwohner bevölkerung mensch leute live leben
weather forecast wetter wettervorhersage
temperature temp degree temperatur grad celsius
rain precipitation rainfall regen niederschlag
humidity luftfeuchtigkeit
wind windgeschwindigkeit
price cost costs kosten kostet preis fee tariff pay
area surface fläche
city cities town stadt städte ort
country nation land länder
capital hauptstadt
region province
state bundesland
mass weight weigh gewicht masse wiegt wiegen
length länge
height höhe
width breite
depth tiefe
speed velocity geschwindigkeit
age alter
distance entfernung distanz strecke far weit
time clock uhr uhrzeit zeit
date datum day tage
month monat
year jahr
duration dauer runtime
hour hours stunde stunden
minute minutes minuten
second seconds sekunde sekunden
add plus addiere addieren addition
subtract minus subtrahiere subtrahieren
multiply times product multipliziere multiplizieren mal produkt
divide quotient dividiere dividieren teile
convert conversion umrechnen rechne wandle umwandeln
translate translation übersetze übersetzen übersetzung
currency währung
exchange wechselkurs kurs
amount betrag
send sende schicke senden schicken
message nachricht
recipient empfänger
email mail
name named called namens heißt
language sprache
order bestellung auftrag
ticket issue bug vorgang
status zustand
customer client kunde kundin
user benutzer nutzer
employee staff mitarbeiter angestellte
salary wage lohn gehalt verdienst earn verdient
income einkommen
revenue sale sales selling sells turnover umsatz umsätze verkauf verkäufe sold
profit gewinn
product item produkt artikel
quantity qty units menge stückzahl
stock inventory bestand lager
score grade mark points note punkte
student pupil schüler student
book buch
author autor
movie film
station bahnhof
train zug
flight flug
hotel
restaurant
room zimmer
kitchen küche
bedroom schlafzimmer
bathroom bad badezimmer
hall flur
light licht lampe lamp
school schule
car auto wagen
color colour farbe
species art arten
island insel
flipper flügel flosse
bill beak schnabel
penguin pinguin
animal tier
search find suche suchen finde
book_ reserve reservation buche buchen reservieren reserviere
delete remove lösche löschen entferne
create new erstelle erstellen anlegen
schedule plan plane planen termin appointment meeting
interest zins zinsen
loan credit mortgage kredit darlehen
rate satz rating
tax steuer
discount rabatt
percent percentage pct prozent
volume volumen lautstärke
top limit first erste n k count_ results
query topic subject keyword thema stichwort
origin source start from from_ ab
target destination dest ziel to to_
female woman women frau frauen weiblich
male man men mann männer männlich
red rot
green grün
blue blau
black schwarz
white weiß
monday montag mon
tuesday dienstag tue
wednesday mittwoch wed
thursday donnerstag thu
friday freitag fri
saturday samstag sat
sunday sonntag sun
small klein kleine little tiny
medium mittel_
large groß große big
km kilometer kilometre
mi mile
m meter metre
cm centimeter centimetre zentimeter
mm millimeter millimetre
ft foot feet fuß
inch inches zoll in_
kg kilogram kilo kilogramm
g gram gramm
lb lbs pound pfund
oz ounce unze
l liter litre
c celsius_ °c
f fahrenheit
k_ kelvin
usd dollar $
eur euro €
gbp sterling £
jpy yen ¥
chf franken
mean average avg durchschnitt durchschnittlich durchschnittliche mittelwert schnitt mittlere
median zentralwert
sum total altogether together insgesamt summe gesamt zusammen summiere gesamtzahl
count number anzahl zahl many viele zähle
std deviation stdev standardabweichung streuung
unique distinct different verschieden verschiedene unterschiedliche eindeutige
missing nan null fehlend fehlende fehlen empty leer
difference differ differenz unterschied
share proportion fraction anteil
range spread spannweite
column columns field variable spalte spalten
row rows record entry line zeile zeilen
describe summary summarize summarise overview beschreibe zusammenfassung überblick
maximum max maximal höchstwert maximale
minimum min minimal minimale
"""
"""Words of one meaning, one meaning a line. A trailing `_` keeps a word apart from another line."""


def word_set(text: str) -> frozenset[str]:
    """Return the words of a list as a set."""
    return frozenset(text.split())


_GRAMMAR = word_set(
    "a an the this that these those my your our its his her their of in on at to for from with by"
    " and or nor but is are was were be been being am do does did done has have had will would"
    " shall should can could may might must what which who whom whose how where when why i you he"
    " she we they me us him them it there here than then as if so not no yes please pls just only"
    " also too very much many more most less least few some any all both each every per into onto"
    " about between over under out up down off again now hi hello hey thanks thank dear"
    " get give show tell compute calculate determine return returns know want need let use using"
    " make look say see like one ones s t re m ll d vs versus lot compare compared"
    " der die das den dem des ein eine einen einem einer eines und oder aber ist sind war waren"
    " sein hat haben hatte wird werden kann können soll was welche welcher welches welchem welchen"
    " wer wem wie wo wann warum wieviel wieviele ich du er sie es wir ihr mir mich dir uns mein"
    " meine dein von vom im in am an auf aus bei beim mit nach zu zum zur für über unter zwischen"
    " um als denn wenn so nicht kein keine ja nein bitte mal nur auch sehr mehr viel vielen"
    " alle jede jeder jedes je pro gib zeig zeige sag sage nenne berechne bestimme hallo danke gibt"
    " da dass"
    " ob doch given value values table frame dataframe data df dieser diese dieses diesem tabelle"
    " daten werte wert list liste"
)
_GERMAN = word_set(
    "der die das und oder ist sind wie viele was welche welcher welches wer wo wann von im aus für"
    " mit nach zwischen ich mir bitte nicht haben hat werden leben gibt wieviele den dem ein eine"
    " zeig zeige berechne nenne beträgt"
)
_ENDINGS = re.compile(r"(?:en|er|em|es|n|e|s)\Z")
_MIN_PART_CHARS = 5
"""Fewest letters of a known word at the start of a German compound."""
_LONG_CHARS = 8
"""Letters from which a word may have two typing errors instead of one."""


def words_in(text: str) -> list[str]:
    """Return the words of a text in lower case; `snake_case` and `camelCase` are split."""
    return re.findall(r"[^\W\d_]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).lower())


def stem(word: str) -> str:
    """Return the stem of a word, so that `boils` matches `boiling`."""
    word = re.sub(r"ies\Z", "y", word.lower())
    return re.sub(r"(?<=\w\w\w)(?:ations?|ions|ing|ed|es|s|e)\Z", "", word)


def _meanings() -> dict[str, str]:
    lines = [[word.rstrip("_") for word in line.split()] for line in _SYNONYMS.splitlines()]
    first_words: dict[str, str] = {}
    for by_stem in (False, True):
        for first, *others in lines:
            for word in (first, *others):
                # The stem of the German `Tage` is an English word.
                if not (by_stem and stem(word) == "tag"):
                    first_words.setdefault(stem(word) if by_stem else word, first)
    return first_words


_MEANINGS = _meanings()
_FIRST_WORDS = frozenset(_MEANINGS.values())


@lru_cache(maxsize=4096)
def meaning(word: str) -> str:
    """Return the first synonym of a word, or its stem if it is in no list of synonyms."""
    word = word.lower()
    forms = (word, stem(word), _ENDINGS.sub("", word) if len(word) > _MIN_PART_CHARS else word)
    for form in forms:
        if form in _MEANINGS:
            return _MEANINGS[form]
    return stem(word)


def is_known(word: str) -> bool:
    """True for words of grammar and words with synonyms: they are no names and no typing errors."""
    return is_grammar(word) or len(compound_parts(word)) > 1 or meaning(word) in _FIRST_WORDS


def is_grammar(word: str) -> bool:
    """True for articles, prepositions, question words and other words without content."""
    return word.lower() in _GRAMMAR


def meanings(text: str) -> set[str]:
    """Return the meanings of the words of a text, without words of grammar."""
    return {
        meaning(part)
        for word in words_in(text)
        if not is_grammar(word)
        for part in compound_parts(word)
    }


@lru_cache(maxsize=4096)
def compound_parts(word: str) -> tuple[str, ...]:
    """Split a German compound of known words (`Einwohnerzahl`); any other word is one part."""
    if len(word) < 2 * _MIN_PART_CHARS or meaning(word) in _FIRST_WORDS:
        return (word,)
    for end in range(len(word) - 3, _MIN_PART_CHARS - 1, -1):
        head, tail = word[:end].removesuffix("s"), word[end:]
        if head in _MEANINGS and tail in _MEANINGS:
            return head, tail
    return (word,)


def is_german(text: str) -> bool:
    """True if a text has at least two German words of grammar, or a quarter of it are some."""
    listed = words_in(text)
    number = sum(word in _GERMAN for word in listed)
    return number >= 2 or 4 * number > len(listed)


def is_misspelt(word: str, right: str) -> bool:
    """True if a word differs from another by one typing error, a long one by up to two."""
    shorter = min(len(word), len(right))
    if shorter < 4 or word[:1] != right[:1]:
        return False
    most = 2 if shorter >= _LONG_CHARS else 1
    return abs(len(word) - len(right)) <= most and _typing_errors(word, right) <= most


_QUESTION_WORDS = word_set(
    "average median maximum minimum standard deviation largest smallest highest lowest heaviest"
    " variance longest shortest oldest youngest total number columns describe summarize difference"
    " unique"
    " durchschnitt durchschnittliche größte kleinste höchste niedrigste anzahl summe"
)
_LONG_WORDS = tuple(word for word in _MEANINGS if len(word) > 5 and word.isalpha())


@lru_cache(maxsize=4096)
def _correction(word: str) -> str:
    if len(word) < 5 or is_known(word) or word in _QUESTION_WORDS:
        return word
    known = (*sorted(_QUESTION_WORDS), *(_LONG_WORDS if len(word) > 5 else ()))
    return next((right for right in known if is_misspelt(word, right)), word)


def corrected(text: str, names: Collection[str] = ()) -> str:
    """Correct typing errors in words of questions; words of `names` and with capitals stay."""
    stems = {stem(name) for name in names}
    return re.sub(
        r"(?<![\w.@/-])[a-zäöüß]{5,24}(?![\w@/])",
        lambda match: match[0] if stem(match[0]) in stems else _correction(match[0]),
        text,
    )


def _typing_errors(typed: str, other: str) -> int:
    """Count letters that are missing, wrong or too many, and neighbours that are exchanged."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(typed, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (letter != wanted)))
            if i > 1 and j > 1 and letter == other[j - 2] and typed[i - 2] == wanted:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]
