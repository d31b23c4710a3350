"""offline:demo with the prompts that people try first: with a frame, tools, typing errors, German.

A row is a prompt as in a cell: `{{ expression }}` is evaluated as `%%agent` does it.
"""

from __future__ import annotations

import asyncio
import datetime
import threading
from typing import Any, Literal

import pandas as pd
import pydantic
import pytest

import nbagent
from nbagent.contracts.canonical import dump_json
from nbagent.session.template import render

day = datetime.datetime.fromisoformat
PENGUINS: Any = pd.DataFrame(
    {
        "species": ["Adelie", "Adelie", "Gentoo", "Gentoo", "Chinstrap", "Chinstrap"],
        "island": ["Torgersen", "Dream", "Biscoe", "Biscoe", "Dream", "Dream"],
        "bill_length_mm": [39.1, 37.5, 46.1, 50.0, 46.5, None],
        "flipper_length_mm": [181, 186, 211, 230, 192, 196],
        "body_mass_g": [3750.0, 3250.0, 4500.0, 5700.0, 3500.0, 3900.0],
        "year": [2007, 2008, 2007, 2009, 2008, 2009],
    }
)
CITIES = pd.DataFrame(
    {
        "city": ["Oslo", "Bergen", "Trondheim", "Berlin"],
        "country": ["Norway", "Norway", "Norway", "Germany"],
        "population": [717710, 291940, 214565, 3677472],
        "area_km2": [454.1, 464.7, 529.0, 891.7],
    }
)
SALES = pd.DataFrame(
    {
        "date": [day("2024-01-05"), day("2024-01-09"), day("2024-02-01"), day("2024-03-03")],
        "product": ["pen", "book", "pen", "lamp"],
        "region": ["North", "South", "North", "East"],
        "revenue": [25.0, 45.0, 17.5, 80.0],
        "returned": [False, True, False, False],
    }
)
NAMES: dict[str, Any] = {
    "df": PENGUINS,
    "cities": CITIES,
    "sales": SALES,
    "means": PENGUINS.groupby("species").body_mass_g.mean(),
    "big": pd.DataFrame({"price": range(100_000), "shop": ["a", "b"] * 50_000}),
    "xs": [4, 8, 15, 16, 23, 42],
    "towns": ["Oslo", "Bergen"],
    "people": {"Oslo": 717710, "Bergen": 291940},
    "n": 5,
}


@pytest.fixture(autouse=True)
def without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")


def population(city: str) -> int:
    "People living in a city."
    return {"oslo": 717710, "bergen": 291940, "rome": 2748109, "new york": 8258035}[city.lower()]


def area(city: str) -> float:
    "Area of a city in square kilometres."
    return {"oslo": 454.1, "bergen": 464.7}[city.lower()]


def mean_mass(species: str) -> float:
    "Mean body mass of a penguin species in grams."
    return float(PENGUINS[PENGUINS.species == species].body_mass_g.mean())


def get_weather(city: str, day: str = "today") -> str:
    "Weather forecast for a city."
    return f"sunny in {city}"


Unit = Literal["km", "mi", "kg", "lb"]


def convert(amount: float, from_unit: Unit, to_unit: Unit) -> float:
    "Convert an amount from one unit to another."
    return 3.5


def add(a: float, b: float) -> float:
    "Add two numbers."
    return a + b


def search_papers(query: str, limit: int = 10) -> list[str]:
    "Search papers in the library."
    return [f"On {query}"]


def send_email(to: str, text: str) -> str:
    "Send an email to a person."
    return "sent"


def set_light(
    room: Literal["kitchen", "living_room", "hall"], on: bool, brightness: int = 100
) -> str:
    "Turn the light of a room on or off."
    return "done"


def find_flights(origin: str, destination: str, date: datetime.date) -> list[str]:
    "Find flights between two cities on a date."
    return ["SK 4711"]


def mean_of(values: list[float]) -> float:
    "Mean of numbers."
    return sum(values) / len(values)


def translate(text: str, language: str) -> str:
    "Translate a text to another language."
    return "übersetzt"


def order_status(order_id: str) -> str:
    "Status of an order."
    return "shipped"


def exchange_rate(base: str, target: str) -> float:
    "Exchange rate between two currencies."
    return 1.1


MANY = (
    *(population, area, mean_mass, get_weather, convert, add, search_papers, send_email),
    *(set_light, find_flights, mean_of, translate, order_status, exchange_rate),
)
TWO = (population, area)
NONE = ()
STAND_IN = "a rule-based stand-in and not a language model"

Row = tuple[str, tuple[Any, ...], str, str]
# prompt, tools, the calls that are made, a part of the answer
FIRST_PROMPTS: list[Row] = [
    # Tools.
    ("How many people live in Oslo?", TWO, 'population(city="Oslo")', "717,710"),
    ("how many people live in oslo?", TWO, 'population(city="oslo")', "717,710"),
    ("What is the population and the area of Oslo?", TWO,
     'population(city="Oslo"); area(city="Oslo")', "454.1"),
    ("popluation of Bergen", TWO, 'population(city="Bergen")', "291,940"),
    ("Is Oslo larger than Bergen?", TWO,
     'population(city="Oslo"); population(city="Bergen")', "Yes: **Oslo** is larger"),
    ("Is Bergen larger than Oslo?", TWO,
     'population(city="Bergen"); population(city="Oslo")', "No: **Oslo** is larger"),
    ("What's the average population of Oslo, Bergen and Rome?", TWO,
     'population(city="Oslo"); population(city="Bergen"); population(city="Rome")',
     "The mean is **1,252,586.333**"),
    ("population of New York and rome?", TWO,
     'population(city="New York"); population(city="rome")', "2,748,109"),
    ("What's the weather in Paris tomorrow?", MANY,
     'get_weather(city="Paris", day="tomorrow")', "sunny in Paris"),
    ("weather in oslo and bergen on Monday", MANY,
     'get_weather(city="oslo", day="Monday"); get_weather(city="bergen", day="Monday")', "sunny"),
    ("Convert 5 km to miles", MANY, 'convert(amount=5, from_unit="km", to_unit="mi")', "3.5"),
    ("How many miles are 10km?", MANY, 'convert(amount=10, from_unit="km", to_unit="mi")', "3.5"),
    ("Add 3 and 4.5", MANY, "add(a=3, b=4.5)", "7.5"),
    ("What is 17 plus 4?", MANY, "add(a=17, b=4)", "21"),
    ("Search papers about penguin diets, limit 5", MANY,
     'search_papers(query="penguin diets", limit=5)', "On penguin diets"),
    ("Find 3 papers on sea ice", MANY, 'search_papers(query="sea ice", limit=3)', "On sea ice"),
    ("Send an email to anna@example.com saying the report is done", MANY,
     'send_email(to="anna@example.com", text="report is done")', "sent"),
    ("Turn on the light in the living room", MANY,
     'set_light(room="living_room", on=true)', "done"),
    ("Turn off the kitchen light", MANY, 'set_light(room="kitchen", on=false)', "done"),
    ("Find flights from Oslo to Rome on 3 March 2025", MANY,
     'find_flights(origin="Oslo", destination="Rome", date="2025-03-03")', "SK 4711"),
    ("Find flights from Oslo to Rome tomorrow", MANY, "", "`find_flights` needs `date`"),
    ("What is the mean of 4, 8 and 15?", MANY, "mean_of(values=[4,8,15])", "9"),
    ("mean of {{ xs }}", MANY, "mean_of(values=[4,8,15,16,23,42])", "18"),
    ("translate good morning into French", MANY,
     'translate(text="good morning", language="French")', "übersetzt"),
    ("What is the status of order A-1234?", MANY, 'order_status(order_id="A-1234")', "shipped"),
    ("exchange rate between USD and EUR", MANY, 'exchange_rate(base="USD", target="EUR")', "1.1"),
    ("Which of {{ towns }} is larger?", TWO,
     'population(city="Oslo"); population(city="Bergen")', "**Oslo** is larger"),
    ("What is my population?", TWO, "", "`population` needs `city`"),
    ("Tell me about Python", MANY, "", STAND_IN),
    ("What can you do?", MANY, "", STAND_IN),
    # In German.
    ("Wie viele Einwohner hat Oslo?", TWO, 'population(city="Oslo")', "717,710"),
    ("Wie groß ist die Fläche von Bergen?", TWO, 'area(city="Bergen")', "464.7"),
    ("Welche Stadt hat mehr Einwohner, Oslo oder Bergen?", TWO,
     'population(city="Oslo"); population(city="Bergen")', "**Oslo** is larger"),
    ("Wie ist das Wetter morgen in München?", MANY,
     'get_weather(city="München", day="morgen")', "sunny in München"),
    ("Mach das Licht in der Küche aus", MANY, 'set_light(room="kitchen", on=false)', "done"),
    ("Wie viele Zeilen hat {{ df }}?", NONE, "", "**6** rows"),
    ("Durchschnittliche Masse pro Art? {{ df }}", NONE, "", "| Gentoo | 5100 |"),
    ("Welche Stadt hat die meisten Einwohner? {{ cities }}", NONE, "", "**Berlin**"),
    # A frame and a tool.
    ("mean mass of Chinstrap penguins? {{ df }}", (mean_mass,),
     'mean_mass(species="Chinstrap")', "3,700"),
    ("{{ df }}\nmean mass of chinstarp penguins?", (mean_mass,),
     'mean_mass(species="Chinstrap")', "3,700"),
    ("mean mass of each species {{ df }}", (mean_mass,),
     'mean_mass(species="Adelie"); mean_mass(species="Gentoo"); mean_mass(species="Chinstrap")',
     "| Gentoo | 5,100 |"),
    ("Which species is heavier, Adelie or Gentoo? {{ df }}", (mean_mass,),
     'mean_mass(species="Adelie"); mean_mass(species="Gentoo")', "**Gentoo** is heavier"),
    ("Use mean_mass on {{ df }}", (mean_mass,), "", "`mean_mass` needs `species`"),
    ("What is the mean population? {{ cities }}", TWO, "", "**1,225,422**"),
    # A frame alone.
    ("How many rows are in {{ df }}?", NONE, "", "**6** rows"),
    ("{{ df }}\n\nHow many penguins are there?", NONE, "", "**6 rows**"),
    ("What columns does {{ df }} have?", NONE, "", "`body_mass_g`"),
    ("mean mass of Chinstrap penguins? {{ df }}", NONE, "", "**3700** (2 rows)"),
    ("avreage body mass of gentoo {{ df }}", NONE, "", "**5100** (2 rows)"),
    ("Which species has the highest mean body mass? {{ df }}", NONE, "", "**Gentoo** has the larg"),
    ("how many Adelie penguins are on Dream? {{ df }}", NONE, "", "**1** of 6 rows"),
    ("Which islands are in the data? {{ df }}", NONE, "", "Dream, Biscoe, Torgersen"),
    ("{{ df }} longest bill", NONE, "", "**50**"),
    ("How many penguins weigh more than 4000 g? {{ df }}", NONE, "", "**2** of 6 rows"),
    ("mean mass in 2008? {{ df }}", NONE, "", "**3375** (2 rows)"),
    ("what is the most common island in {{ df }}", NONE, "", "**Dream** (3 of 6 rows)"),
    ("what percentage of penguins are Gentoo {{ df }}", NONE, "", "**33.3%**"),
    ("Are there missing values? {{ df }}", NONE, "", "`bill_length_mm` 1"),
    ("Summarize this table: {{ df }}", NONE, "", "`year`: 2007 to 2009"),
    ("What is the population of Bergen? {{ cities }}", NONE, "", "**291,940**"),
    ("total population of Norway {{ cities }}", NONE, "", "**1,224,215** (3 rows)"),
    ("top 2 cities by area {{ cities }}", NONE, "", "| Trondheim | Norway | 214565 | 529 |"),
    ("What is the difference in population between Oslo and Bergen? {{ cities }}", NONE, "",
     "The difference is **425,770**"),
    ("total revenue by region {{ sales }}", NONE, "", "| North | 42.5 |"),
    ("Total sales of pens {{ sales }}", NONE, "", "**42.5** (2 rows)"),
    ("how many orders were returned? {{ sales }}", NONE, "", "**1** of 4 rows"),
    ("{{ means }} Which is largest?", NONE, "", "**Gentoo**"),
    ("{{ df.describe() }} what is the mean flipper length?", NONE, "", "**199.3333**"),
    ("Which is larger? {{ people }}", NONE, "", "**Oslo**"),
    ("What is the largest number in {{ xs }}?", NONE, "", "**42**"),
    ("What is the mean price? {{ big }}", NONE, "", "of the table's 100,000 rows are in"),
    ("How many rows? {{ big }}", NONE, "", "**100,000** rows"),
    ("Plot the masses of {{ df }}", NONE, "", STAND_IN),
    # A frame in other forms.
    ("mean mass of Gentoo {{ df.to_csv(index=False) }}", NONE, "", "**5100** (2 rows)"),
    ("mean mass of Gentoo {{ df.to_string() }}", NONE, "", "**5100** (2 rows)"),
    ("{{ df.to_string() }} mean mass of Gentoo", NONE, "", "**5100** (2 rows)"),
    ("{{ df.to_dict() }} mean mass of Gentoo", NONE, "", "**5100** (2 rows)"),
    ("{{ df.to_json(orient='records') }} mean mass of Gentoo", NONE, "", "**5100** (2 rows)"),
    ("{{ df.species }} how many Adelie?", NONE, "", "**2** of 6 rows"),
    ("{{ df }} and {{ cities }}: which city is largest?", NONE, "", "has several tables"),
    ("Which penguins are from Dream? {{ df }}", (mean_mass,), "", "**3** of 6 rows"),
    # Two questions.
    ("What's the population of Oslo? And the area of Bergen?", TWO,
     'population(city="Oslo"); area(city="Bergen")', "464.7"),
    ("population of Oslo and Bergen and area of Oslo", TWO,
     'population(city="Oslo"); population(city="Bergen"); area(city="Oslo")', "454.1"),
    # Neither.
    ("What is 2+2?", NONE, "", "**4**"),
    ("what's 15% of 240", NONE, "", "**36**"),
    ("Double {{ n }}.", NONE, "", "**10**"),
    ("Say hello", NONE, "", "hello"),
    ("hi", NONE, "", STAND_IN),
]  # fmt: skip


WEATHER = pd.DataFrame(
    {
        "station": ["Tromsø", "Kiruna", "Vardø", "Alta"],
        "temp_c": [-3.5, -12.0, -4.2, -7.7],
        "rain_mm": [12.0, 0.0, 4.5, None],
        "windy": [True, False, True, False],
    }
)
STAFF = pd.DataFrame(
    {
        "name": ["Ana", "Ben", "Cleo", "Dan", "Eve"],
        "department": ["IT", "Sales", "IT", "HR", "Sales"],
        "salary": [5200, 4100, 6100, 3900, 4500],
        "age": [31, 45, 29, 52, 38],
        "start": [
            day("2019-05-01"),
            day("2010-01-15"),
            day("2021-09-01"),
            day("2005-03-01"),
            day("2015-07-07"),
        ],
    }
)
MOVIES = pd.DataFrame(
    {
        "title": ["Alien", "Heat", "Up", "Jaws"],
        "year": [1979, 1995, 2009, 1975],
        "rating": [8.5, 8.3, 8.2, 8.1],
        "minutes": [117, 170, 96, 124],
        "genre": ["Horror", "Crime", "Family", "Horror"],
    }
)
TITANIC = pd.DataFrame(
    {
        "sex": ["male", "female", "female", "male", "male"],
        "pclass": [3, 1, 3, 1, 2],
        "age": [22.0, 38.0, 26.0, None, 35.0],
        "survived": [0, 1, 1, 0, 1],
        "fare": [7.25, 71.3, 7.9, 51.9, 26.0],
    }
)
STOCK = pd.DataFrame(
    {
        "Artikel": ["Schraube", "Mutter", "Nagel"],
        "Menge": [120, 80, 300],
        "Preis": [0.1, 0.05, 0.02],
    }
)
ORDERS = pd.DataFrame(
    {
        "order_id": [1001, 1002, 1003],
        "customer": ["Meyer", "Schulz", "Meyer"],
        "total": [19.99, 250.0, 5.5],
        "paid": [True, False, True],
    }
)
SENSORS = pd.DataFrame(
    {"type": ["co2", "co2", "pm10"], "status": ["ok", "fail", "ok"]},
    index=pd.Index(["A1", "A2", "B1"], name="id"),
)
OTHER_NAMES: dict[str, Any] = {
    "weather": WEATHER,
    "staff": STAFF,
    "movies": MOVIES,
    "titanic": TITANIC,
    "stock": STOCK,
    "orders": ORDERS,
    "sensors": SENSORS,
    "prices": {"apple": 1.2, "pear": 0.9, "plum": 2.5},
    "temps": [21.5, 19.0, 23.2],
    "teams": [{"team": "Reds", "points": 12}, {"team": "Blues", "points": 17}],
}


def stock_price(symbol: str) -> float:
    "Current price of a stock."
    return 101.5


def book_table(restaurant: str, people: int, time: str) -> str:
    "Book a table in a restaurant."
    return "booked"


def bmi(weight_kg: float, height_m: float) -> float:
    "Body mass index."
    return 22.5


def count_words(text: str) -> int:
    "Number of words in a text."
    return len(text.split())


def capital(country: str) -> str:
    "Capital of a country."
    return "Oslo"


def distance(origin: str, destination: str) -> float:
    "Distance between two places in kilometres."
    return 305.0


def create_event(title: str, date: datetime.date, attendees: list[str] | None = None) -> str:
    "Create an event in the calendar."
    return "created"


def sql(query: str) -> list[dict[str, int]]:
    "Run an SQL query."
    return [{"n": 1}]


def factorial(n: int) -> int:
    "Factorial of a number."
    return 120


def days_between(start: datetime.date, end: datetime.date) -> int:
    "Days between two dates."
    return (end - start).days


def paint(color: Literal["red", "green"], size: Literal["small", "large"] = "small") -> str:
    "Paint a picture in a color."
    return "painted"


def tag_photo(path: str, tags: list[str]) -> str:
    "Add tags to a photo."
    return "tagged"


def tip(bill: float, percent: float = 15) -> float:
    "Tip for a bill."
    return 12.0


def power(base: float, exponent: float) -> float:
    "Power of a number."
    return base**exponent


def station_temperature(station: str) -> float:
    "Temperature at a weather station."
    return {"Tromsø": -3.5, "Kiruna": -12.0}.get(station, 0.0)


def to_fahrenheit(celsius: float) -> float:
    "Convert degrees Celsius to Fahrenheit."
    return celsius * 1.8 + 32


def lookup_user(user_id: int) -> dict[str, Any]:
    "Look up a user."
    return {"name": "Mia", "age": 30}


def set_timer(minutes: int) -> str:
    "Set a timer."
    return "set"


def get_time(timezone: str = "UTC") -> str:
    "Current time."
    return "12:00"


def gdp_of(country: str, year: int = 2023) -> float:
    "Gross domestic product of a country in billion dollars."
    return {"Chile": 301.0, "Peru": 242.0}.get(country, 0.0)


def life_expectancy(country: str) -> float:
    "Life expectancy in a country in years."
    return 78.9


def create_user(name: str, email: str, admin: bool = False) -> str:
    "Create a user account."
    return "created"


def buy(item: str, quantity: int = 1) -> str:
    "Buy an item."
    return "bought"


def histogram(values: list[float], bins: int = 10) -> list[int]:
    "Histogram of numbers."
    return [1, 2]


def route(stops: list[str]) -> float:
    "Length of a route through several places."
    return 12.0


def rectangle_area(width: float, height: float) -> float:
    "Area of a rectangle."
    return width * height


def price_in(amount: float, currency: Literal["EUR", "USD", "GBP"]) -> float:
    "Amount in another currency."
    return 9.9


OFFICE = (
    *(stock_price, book_table, bmi, count_words, capital, distance, create_event, sql, factorial),
    *(days_between, paint, tag_photo, tip, power),
)
HOME = (
    *(to_fahrenheit, lookup_user, set_timer, get_time, gdp_of, life_expectancy, create_user),
    *(buy, histogram, route, rectangle_area, price_in),
)
# Prompts of the same kinds with other words, frames and tools.
OTHER_PROMPTS: list[Row] = [
    ("price of AAPL and MSFT stock", OFFICE,
     'stock_price(symbol="AAPL"); stock_price(symbol="MSFT")', "101.5"),
    ("what does Apple stock cost?", OFFICE, 'stock_price(symbol="Apple")', "101.5"),
    ("Book a table for 4 people at Luigi at 19:30", OFFICE,
     'book_table(restaurant="Luigi", people=4, time="19:30")', "booked"),
    ("Reserviere einen Tisch für 2 Personen im Adler um 18:00", OFFICE,
     'book_table(restaurant="Adler", people=2, time="18:00")', "booked"),
    ("What's my BMI? I weigh 82.5 kg and am 1.80 m tall", OFFICE,
     "bmi(weight_kg=82.5, height_m=1.8)", "22.5"),
    ("How many words are in 'the quick brown fox'?", OFFICE,
     'count_words(text="the quick brown fox")', "**4**"),
    ("capital of norway?", OFFICE, 'capital(country="norway")', "Oslo"),
    ("Was ist die Hauptstadt von Frankreich?", OFFICE, 'capital(country="Frankreich")', "Oslo"),
    ("How far is Bergen from Oslo?", OFFICE,
     'distance(origin="Oslo", destination="Bergen")', "305"),
    ("distnace between Rome and Paris", OFFICE,
     'distance(origin="Rome", destination="Paris")', "305"),
    ("Create an event 'Team lunch' on 2025-06-12 with Anna and Bob", OFFICE,
     'create_event(title="Team lunch", date="2025-06-12", attendees=["Anna","Bob"])', "created"),
    ("Run the query `select count(*) from t`", OFFICE,
     'sql(query="select count(*) from t")', "| 1 |"),
    ("factorial of five", OFFICE, "factorial(n=5)", "120"),
    ("How many days are between 2024-01-01 and 2024-03-01?", OFFICE,
     'days_between(start="2024-01-01", end="2024-03-01")', "60"),
    ("Wie viele Tage liegen zwischen dem 01.02.2024 und dem 15.02.2024?", OFFICE,
     'days_between(start="2024-02-01", end="2024-02-15")', "14"),
    ("Paint a big green picture", OFFICE, 'paint(color="green", size="large")', "painted"),
    ("Male ein rotes Bild", OFFICE, 'paint(color="red")', "painted"),
    ("Tag photos/cat.jpg with cute, cat and home", OFFICE,
     'tag_photo(path="photos/cat.jpg", tags=["cute","cat","home"])', "tagged"),
    ("tip on a bill of $48.50", OFFICE, "tip(bill=48.5)", "12"),
    ("Tip of 20% on 60 euros", OFFICE, "tip(bill=60, percent=20)", "12"),
    ("2 to the power of 10", OFFICE, "power(base=2, exponent=10)", "1,024"),
    ("What is 25 celsius in fahrenheit?", HOME, "to_fahrenheit(celsius=25)", "77"),
    ("Wieviel Fahrenheit sind 20 Grad Celsius?", HOME, "to_fahrenheit(celsius=20)", "68"),
    ("Who is user 12?", HOME, "lookup_user(user_id=12)", "Mia"),
    ("Set a timer for 10 minutes", HOME, "set_timer(minutes=10)", "set"),
    ("Stelle einen Timer auf 5 Minuten", HOME, "set_timer(minutes=5)", "set"),
    ("What is the time in Europe/Berlin?", HOME, 'get_time(timezone="Europe/Berlin")', "12:00"),
    ("What time is it?", HOME, "get_time()", "12:00"),
    ("GDP of Chile in 2020", HOME, 'gdp_of(country="Chile", year=2020)', "301"),
    ("What are the GDP and the life expectancy of Peru?", HOME,
     'life_expectancy(country="Peru"); gdp_of(country="Peru")', "242"),
    ("lfie expectancy in Chile", HOME, 'life_expectancy(country="Chile")', "78.9"),
    ("Is the GDP of Peru higher than that of Chile?", HOME,
     'gdp_of(country="Peru"); gdp_of(country="Chile")', "No: **Chile** is higher"),
    ("Create a user named Mia with the email mia@example.org, admin", HOME,
     'create_user(name="Mia", email="mia@example.org", admin=true)', "created"),
    ("Buy 3 apples", HOME, 'buy(item="apples", quantity=3)', "bought"),
    ("histogram of {{ temps }} with 5 bins", HOME,
     "histogram(values=[21.5,19.0,23.2], bins=5)", "1, 2"),
    ("Length of the route through Oslo, Hamar and Trondheim", HOME,
     'route(stops=["Oslo","Hamar","Trondheim"])', "12"),
    ("area of a rectangle 3 x 4", HOME, "rectangle_area(width=3, height=4)", "12"),
    ("What's 15 GBP in USD?", HOME, 'price_in(amount=15, currency="USD")', "9.9"),
    ("Tell me a joke", HOME, "", STAND_IN),
    ("What is the temperature in Kiruna? {{ weather }}", (station_temperature,),
     'station_temperature(station="Kiruna")', "-12"),
    ("Which station is the coldest? {{ weather }}", NONE, "", "**Kiruna**"),
    ("How cold is it in Alta? {{ weather }}", NONE, "", "**-7.7**"),
    ("which stations are windy {{ weather }}", NONE, "", "| Vardø |"),
    ("stations with more than 5 mm rain {{ weather }}", NONE, "", "| Tromsø |"),
    ("Who earns the most? {{ staff }}", NONE, "", "**Cleo**"),
    ("Who is the youngest in IT? {{ staff }}", NONE, "", "**Cleo** has the smallest `age`"),
    ("Durchschnittsgehalt der IT? {{ staff }}", NONE, "", "**5650** (2 rows)"),
    ("What is Ben's salary? {{ staff }}", NONE, "", "**4100**"),
    ("employees older than 40 {{ staff }}", NONE, "", "**2** of 5 rows"),
    ("who started last? {{ staff }}", NONE, "", "**Cleo**"),
    ("difference between the highest and lowest salary {{ staff }}", NONE, "", "**2200**"),
    ("total salary of HR and IT {{ staff }}", NONE, "", "Together: **15,200**"),
    ("Which movie is the longest? {{ movies }}", NONE, "", "**Heat**"),
    ("movies before 1990 {{ movies }}", NONE, "", "**2** of 4 rows"),
    ("oldest movie? {{ movies }}", NONE, "", "**Jaws**"),
    ("sort by rating {{ movies }}", NONE, "", "the smallest first"),
    ("survival rate of women {{ titanic }}", NONE, "", "**100.0%**"),
    ("average age of men {{ titanic }}", NONE, "", "**28.5** (2 rows, 1 empty left out)"),
    ("mean fare per class {{ titanic }}", NONE, "", "| 1 | 61.6 |"),
    ("Which fruit is the cheapest? {{ prices }}", NONE, "", "**pear**"),
    ("How many points do the Blues have? {{ teams }}", NONE, "", "**17**"),
    ("which sensors failed? {{ sensors }}", NONE, "", "| A2 |"),
    ("how many sensors are ok {{ sensors }}", NONE, "", "**2** of 3 rows"),
    ("Was kostet eine Schraube? {{ stock }}", NONE, "", "**0.1**"),
    ("Gesamtmenge? {{ stock }}", NONE, "", "**500**"),
    ("Zeige alle Artikel mit Menge über 100 {{ stock }}", NONE, "", "Schraube, Nagel"),
    ("which orders are unpaid? {{ orders }}", NONE, "", "**1002**"),
    ("How many orders does each customer have? {{ orders }}", NONE, "", "| Meyer | 2 |"),
    ("largest order {{ orders }}", NONE, "", "| 1002 | Schulz |"),
    ("first 2 rows {{ orders }}", NONE, "", "| 1002 |"),
    ("What's the mean and the max salary? {{ staff }}", NONE, "", "The largest value of `salary`"),
    ("median salary of people older than 30 {{ staff }}", NONE, "", "**4300** (4 rows)"),
    ("How many columns and rows? {{ staff }}", NONE, "", "**5** rows and 5 columns"),
    ("What is the square root of 144?", NONE, "", "**12**"),
    ("Wie viel ist 100 geteilt durch 4?", NONE, "", "**25**"),
]  # fmt: skip


def delete_file(path: str) -> str:
    "Delete a file."
    return "deleted"


def mail(to: str, subject: str, body: str) -> str:
    "Send an email."
    return "sent"


mail.__name__ = "send_mail"


def weather_on(city: str, date: str) -> str:
    "Weather forecast of a city on a date (ISO)."
    return "rain"


def search_orders(customer: str, min_amount: float = 0) -> list[str]:
    "Search the orders of a customer."
    return ["1001"]


def subtract(a: float, b: float) -> float:
    "Subtract b from a."
    return a - b


ACTS = (delete_file, mail)
LOOKS = (population, mean_mass, weather_on, search_orders, bmi, add, subtract)
NO_ACT = "so I call no tool"
BY_RULES = "cannot answer that by rules"
# What the rules do not understand is not answered: no call, and a sentence that says why.
NOT_UNDERSTOOD: list[Row] = [
    ("Do not delete the file a.txt", ACTS, "", NO_ACT),
    ("Please don't delete a.txt", ACTS, "", NO_ACT),
    ("Never delete a.txt!", ACTS, "", NO_ACT),
    ("Lösche die Datei a.txt nicht", ACTS, "", NO_ACT),
    ("Delete no file, also a.txt", ACTS, "", NO_ACT),
    ("Avoid to delete a.txt", ACTS, "", NO_ACT),
    ("Don't call `delete_file(path=\"a.txt\")`", ACTS, "", NO_ACT),
    ("Should I delete the file a.txt?", ACTS, "", NO_ACT),
    ("How do I delete the file a.txt?", ACTS, "", NO_ACT),
    ("Soll ich die Datei a.txt löschen?", ACTS, "", NO_ACT),
    ("If a.txt is old, delete it", ACTS, "", NO_ACT),
    ("Keep a.txt and delete nothing", ACTS, "", NO_ACT),
    ("Leave a.txt alone, delete is wrong", ACTS, "", "does not begin as an order"),
    ("Please stop deleting a.txt", ACTS, "", "does not begin as an order"),
    ("Nobody should delete a.txt", ACTS, "", NO_ACT),
    ("Can you delete a.txt?", ACTS, 'delete_file(path="a.txt")', "deleted"),
    ("how many penguins per island and year {{ df }}", NONE, "", "“year”"),
    ("mean mass from 2007 to 2008 {{ df }}", NONE, "", BY_RULES),
    ("average mass of light penguins {{ df }}", NONE, "", "“light”"),
    ("mean mass of the 3 heaviest {{ df }}", NONE, "", "“3”"),
    ("bill longer than 40 mm and mass below 4000 {{ df }}", NONE, "", BY_RULES),
    ("Who did delete a.txt?", ACTS, "", "is a question"),
    ("Delete the file a.txt", ACTS, 'delete_file(path="a.txt")', "deleted"),
    ("Send an email to bob@example.com with subject Hello and body See you", ACTS, "",
     "not clear in the prompt"),
    ("Weather in Oslo tomorrow?", LOOKS, "", "`date`, which is not clear"),
    ("Weather in Oslo on 2026-12-24?", LOOKS,
     'weather_on(city="Oslo", date="2026-12-24")', "rain"),
    ("How tall is a Gentoo and how many people live in Oslo?", (population,), "", BY_RULES),
    ("Does Oslo have more than a million inhabitants?", LOOKS, "", BY_RULES),
    ("What percentage of Oslo's population is Bergen's?", LOOKS, "", BY_RULES),
    ("Search the orders of Smith before 2026-01-01", (search_orders,), "", "2026-01-01"),
    ("BMI for 80 kg and 180 cm", LOOKS, "", "`height_m`, which is not clear"),
    ("Subtract 3 from 10", LOOKS, "", "**7**"),
    ("Was ist 3,5 + 2?", NONE, "", "**5.5**"),
    ("What is 1/3 of 90?", NONE, "", "**30**"),
    ("-3^2", NONE, "", "**-9**"),
    ("1,000 + 2.500", NONE, "", STAND_IN),
    ("3 apples plus 4 pears", NONE, "", STAND_IN),
    ("How many penguins are not on Dream? {{ df }}", NONE, "", BY_RULES),
    ("How many penguins without Gentoo? {{ df }}", NONE, "", BY_RULES),
    ("Wie viele Pinguine außer Gentoo? {{ df }}", NONE, "", BY_RULES),
    ("Which species does NOT live on Biscoe? {{ df }}", NONE, "", BY_RULES),
    ("Which penguins weigh more than 4 kg? {{ df }}", NONE, "", "“kg”"),
    ("total mass in kg {{ df }}", NONE, "", "“kg”"),
    ("second heaviest penguin {{ df }}", NONE, "", "“second”"),
    ("3rd heaviest penguin {{ df }}", NONE, "", "“3rd”"),
    ("mean mass of Emperor penguins {{ df }}", NONE, "", "No cell of the table is “Emperor”"),
    ("mean mass per species and island {{ df }}", NONE, "", "“island”"),
    ("Is the mean mass of Gentoo more than 5000? {{ df }}", NONE, "", BY_RULES),
    ("variance of mass {{ df }}", NONE, "", "“variance”"),
    ("mass of the penguin with the longest flipper {{ df }}", NONE, "", BY_RULES),
    ("total revenue in January? {{ sales }}", NONE, "", "“January”"),
    ("revenue before 2024-02-10 {{ sales }}", NONE, "", BY_RULES),
    ("revenue per month {{ sales }}", NONE, "", "“month”"),
    ("what share of revenue is from pens? {{ sales }}", NONE, "", "“share”"),
    ("revenue minus 10 {{ sales }}", NONE, "", "“minus”"),
    ("profit by region {{ sales }}", NONE, "", "“profit”"),
    ("How many lunches? {{ sales }}", NONE, "", "“lunches”"),
    ("which is most common? {{ df.species.value_counts() }}", NONE, "", BY_RULES),
    ("How many rows do both have? {{ df }} {{ sales }}", NONE, "", BY_RULES),
    ("sort by price {{ big.head(12) }}", NONE, "", "2 rows left out"),
    ("Sort {{ xs }}", NONE, "", "4, 8, 15, 16, 23, 42"),
    ("standard deviation of mass {{ df }}", NONE, "", "standard deviation of `body_mass_g`"),
    ("Who wins?", NONE, "", "There is no tool here"),
]  # fmt: skip


def cell(prompt: str, tools: tuple[Any, ...], **options: Any) -> nbagent.Run:
    """Run a prompt as a cell does, with its expressions evaluated."""
    values = {**NAMES, **OTHER_NAMES, **options.pop("names", {})}
    text = render(prompt, lambda expression: eval(expression, values)).prompt
    before: nbagent.Run | None = options.pop("before", None)
    if before is not None:
        return before.resume(text)
    agent = nbagent.Agent(
        "offline:demo", tools=tools or "none", template=False, quiet=True, **options
    )
    return agent.run(text)


def calls_of(run: nbagent.Run) -> str:
    made = [one for turn in run.turns for one in turn.tool_runs]
    texts = [
        ", ".join(f"{name}={dump_json(value).decode()}" for name, value in (one.args or {}).items())
        for one in made
    ]
    return "; ".join(f"{one.tool_name}({text})" for one, text in zip(made, texts, strict=True))


@pytest.mark.parametrize(
    "row", [*FIRST_PROMPTS, *OTHER_PROMPTS, *NOT_UNDERSTOOD], ids=lambda row: row[0]
)
def test_first_prompts_make_sensible_calls_and_answers(row: Row) -> None:
    prompt, tools, expected_calls, part = row
    run = cell(prompt, tools).raise_for_error()
    assert calls_of(run) == expected_calls
    assert part in run.text
    assert "float64" not in run.text, "a dtype is no value"


class Place(pydantic.BaseModel):
    """A city and its people."""

    name: str
    population: int


TYPED: list[tuple[str, tuple[Any, ...], Any, Any]] = [
    ("What is the population of Oslo?", TWO, Place, Place(name="Oslo", population=717710)),
    ("Tell me about Rome", NONE, Place, None),
    ("Which species is heaviest? {{ df }}", NONE, Place, None),
    ("How many rows? {{ df }}", NONE, int, 6),
]


@pytest.mark.parametrize("row", TYPED, ids=lambda row: row[0])
def test_typed_answer_is_never_made_up(row: tuple[str, tuple[Any, ...], Any, Any]) -> None:
    prompt, tools, answer_type, expected = row
    run = cell(prompt, tools, output=answer_type)
    assert run.output == expected
    assert (run.error is None) == (expected is not None)


# prompts of one conversation (`%%agent --continue`), each with its calls and a part of the answer
CONVERSATIONS: dict[str, tuple[tuple[Any, ...], list[tuple[str, str, str]]]] = {
    "two cities": (TWO, [
        ("Which of Oslo and Bergen is larger?",
         'population(city="Oslo"); population(city="Bergen")', "**Oslo** is larger"),
        ("And by how much?", "", "The difference is **425,770**"),
        ("And Rome?", 'population(city="Rome")', "2,748,109"),
        ("What is the total?", "", "Together: **3,757,759**"),
    ]),
    "one city": (TWO, [
        ("What is the population of Oslo?", 'population(city="Oslo")', "717,710"),
        ("And the area?", 'area(city="Oslo")', "454.1"),
    ]),
    "weather": (MANY, [
        ("Wie ist das Wetter in Oslo?", 'get_weather(city="Oslo")', "sunny in Oslo"),
        ("Und in Bergen?", 'get_weather(city="Bergen")', "sunny in Bergen"),
    ]),
    "a frame": (NONE, [
        ("mean mass of Chinstrap? {{ df }}", "", "**3700**"),
        ("And Gentoo?", "", "**5100**"),
        ("And the maximum?", "", "**5700**"),
        ("How many of them are there?", "", "**2** of 6 rows"),
    ]),
    "a row of a frame": (NONE, [
        ("Which city has the most people? {{ cities }}", "", "**Berlin**"),
        ("And the fewest?", "", "**Trondheim**"),
        ("What is its area?", "", "**529**"),
    ]),
    "a frame and a tool": ((mean_mass,), [
        ("mean mass of Adelie {{ df }}", 'mean_mass(species="Adelie")', "3,500"),
        ("And Gentoo?", 'mean_mass(species="Gentoo")', "5,100"),
        ("Which is heavier?", "", "**Gentoo** is heavier"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversation_continues_the_question_before(name: str) -> None:
    tools, rows = CONVERSATIONS[name]
    run = None
    for prompt, expected_calls, part in rows:
        run = cell(prompt, tools, before=run).raise_for_error()
        assert calls_of(run) == expected_calls, prompt
        assert part in run.text, prompt


@pytest.mark.parametrize("words", [None, "again", "continue", "Try again, please.", "weiter"])
def test_stopped_call_is_made_again(words: str | None) -> None:
    entered: list[str] = []
    began = threading.Event()

    async def count_people(city: str) -> int:
        "Count the people of a city."
        entered.append(city)
        began.set()
        if len(entered) == 1:
            await asyncio.Event().wait()
        return 717710

    agent = nbagent.Agent("offline:demo", tools=[count_people], quiet=True)
    stopped = agent.start("Count the people of Oslo")
    assert began.wait(60)
    stopped.stop()
    assert stopped.wait().stop_reason == "stopped"
    run = stopped.resume(words) if words else stopped.resume()
    assert entered == ["Oslo", "Oslo"]
    assert "**Oslo**: **717,710**" in run.text


def test_call_that_is_stopped_each_time_is_told_and_not_repeated_for_ever() -> None:
    entered: list[str] = []

    def count_people(city: str) -> int:
        "Count the people of a city."
        entered.append(city)
        raise nbagent.ToolError("stopped", code="E_INTERRUPTED")

    run = cell("Count the people of Oslo", (count_people,))
    assert len(entered) == 3
    assert 'Stopped: `count_people(city="Oslo")`: stopped' in run.text
    assert "again" in run.text


ANSWERS: dict[str, tuple[Any, str]] = {
    "allowed": (True, "**Oslo**: **717,710**"),
    "edited": ({"city": "Rome"}, 'You changed `population(city="Oslo")` to `population(city="Rome'),
    "denied": (False, 'I was not allowed to call `population(city="Oslo")`'),
    "denied with a reason": ("not today", "not today"),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_answer_of_a_person_to_a_call_is_told(answer: str) -> None:
    nbagent.configure(ask=["population"])
    decision, part = ANSWERS[answer]

    def answered(question: nbagent.Question) -> Any:
        return decision

    run = cell("What is the population of Oslo?", TWO, on_approval=answered)
    assert part in run.text
    assert ("**Rome**: **2,748,109**" in run.text) == (answer == "edited")
    assert len(run.turns) == 2


def test_result_that_was_cut_is_told() -> None:
    def log(city: str) -> str:
        "Log of a city."
        return "line\n" * 100_000

    assert "a part of it was left out" in cell("log of Oslo", (log,)).text


HOSTILE: dict[str, tuple[str, Any]] = {
    "1 MB of words": ("{{ x }}\nWhat is the mean of x?", "word " * 200_000),
    "1 MB without spaces": ("{{ x }}", "a" * 1_000_000),
    "1 MB before a question": ("{{ x }} How many people live in Oslo?", "word " * 200_000),
    "100,000 rows": ("mean of b in {{ x }}", pd.DataFrame({"b": range(100_000)})),
    "3,000 columns": ("mean of c7 in {{ x }}", pd.DataFrame({f"c{i}": [1] for i in range(3_000)})),
    "opening braces": ("{{ x }}", "{" * 200_000),
    "opening brackets": ("{{ x }}", "[" * 200_000),
    "deep lists": ("{{ x }}", "[1," * 100_000),
    "deep objects": ("{{ x }}", '{"a":' * 100_000),
    "bars": ("{{ x }}", "|" * 200_000),
    "headers of tables": ("{{ x }} how many rows?", "| a |\n| --- |\n" * 50_000),
    "titles of tables": ("{{ x }}", "DataFrame: 9 rows × 0 columns\n" * 20_000),
    "NULs": ("What is the mean of {{ x }}?", "\0" * 100_000),
    "quotes": ("{{ x }}", "'" * 200_000),
    "backticks": ("{{ x }}", "`" * 200_000),
    "a long sum": ("{{ x }}", "1+" * 100_000),
    "capitals": ("{{ x }}", "A " * 100_000),
    "dates": ("{{ x }}", "2024-01-01 " * 20_000),
    "an empty frame": ("mean of a {{ x }}", pd.DataFrame({"a": []})),
    "a frame without columns": ("mean of a {{ x }}", pd.DataFrame(index=range(3))),
    "odd names": ("mean of float64 {{ x }}",
                  pd.DataFrame({"float64": ["a"], "": [1], "a|b": ["{"], "None": [None]})),
    "only missing numbers": ("max of a {{ x }}", pd.DataFrame({"a": [float("nan"), float("inf")]})),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("tools", [NONE, MANY], ids=["no tools", "tools"])
def test_hostile_prompt_ends_with_a_sentence(case: str, tools: tuple[Any, ...]) -> None:
    prompt, value = HOSTILE[case]
    run = cell(prompt, tools, names={"x": value}).raise_for_error()
    assert run.text.strip()
    assert len(run.turns) <= 2


def test_walker_follows_workflows_only_and_is_listed_with_a_sentence() -> None:
    listed: Any = nbagent.models("offline")
    (capabilities,) = listed.capabilities[listed.id == "offline:walk"]
    assert "follows the steps of a workflow" in str(capabilities)
    run = nbagent.Agent("offline:walk", tools=[population], quiet=True).run("Population of Oslo?")
    assert "this is no workflow" in run.text
    assert run.stop_reason == "answered"
