"""Word lists. Written for this corpus."""

from random import Random


def words_of(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The words of a list written as one string."""
    return tuple(text.split(separator))


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split(","))


CAPITALS = _pairs(
    "France:Paris,Germany:Berlin,Italy:Rome,Spain:Madrid,Portugal:Lisbon,Austria:Vienna,Belgium:Brussels,"
    "Switzerland:Bern,Poland:Warsaw,Hungary:Budapest,Greece:Athens,Turkey:Ankara,Russia:Moscow,Ukraine:Kyiv,"
    "Norway:Oslo,Sweden:Stockholm,Finland:Helsinki,Denmark:Copenhagen,Iceland:Reykjavik,Ireland:Dublin,"
    "England:London,Scotland:Edinburgh,Wales:Cardiff,Romania:Bucharest,Bulgaria:Sofia,Serbia:Belgrade,"
    "Croatia:Zagreb,Slovenia:Ljubljana,Slovakia:Bratislava,Estonia:Tallinn,Latvia:Riga,Lithuania:Vilnius,"
    "Japan:Tokyo,China:Beijing,India:New Delhi,Nepal:Kathmandu,Thailand:Bangkok,Vietnam:Hanoi,"
    "Indonesia:Jakarta,Malaysia:Kuala Lumpur,Mongolia:Ulaanbaatar,Pakistan:Islamabad,Iran:Tehran,"
    "Iraq:Baghdad,Syria:Damascus,Jordan:Amman,Lebanon:Beirut,Qatar:Doha,Egypt:Cairo,Libya:Tripoli,"
    "Morocco:Rabat,Algeria:Algiers,Tunisia:Tunis,Kenya:Nairobi,Ethiopia:Addis Ababa,Ghana:Accra,"
    "Nigeria:Abuja,Senegal:Dakar,Uganda:Kampala,Zambia:Lusaka,Zimbabwe:Harare,Canada:Ottawa,"
    "Mexico:Mexico City,Cuba:Havana,Jamaica:Kingston,Brazil:Brasilia,Argentina:Buenos Aires,Chile:Santiago,"
    "Peru:Lima,Colombia:Bogota,Venezuela:Caracas,Ecuador:Quito,Uruguay:Montevideo,Paraguay:Asuncion,"
    "Australia:Canberra,New Zealand:Wellington"
)

OPPOSITES = _pairs(
    "hot:cold,big:small,tall:short,fast:slow,old:young,happy:sad,light:dark,hard:soft,wet:dry,full:empty,"
    "open:closed,rich:poor,strong:weak,clean:dirty,early:late,up:down,left:right,in:out,on:off,high:low,"
    "near:far,loud:quiet,good:bad,day:night,black:white,begin:end,win:lose,push:pull,buy:sell,love:hate,"
    "true:false,thick:thin,wide:narrow,deep:shallow,heavy:weightless,sharp:blunt,smooth:rough,sweet:sour,"
    "brave:cowardly,easy:difficult,first:last,front:back,inside:outside,always:never,noisy:silent,"
    "asleep:awake,alive:dead,cheap:expensive,friend:enemy,summer:winter,north:south,east:west,top:bottom,"
    "before:after,come:go,give:take,laugh:cry,remember:forget,arrive:leave,ask:answer"
)

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = words_of("January February March April May June July August September October November December")
MONTH_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
ORDINALS = words_of("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")

COLOURS_OF = _pairs(
    "the sky:blue,grass:green,snow:white,a banana:yellow,a strawberry:red,coal:black,a carrot:orange,"
    "a lemon:yellow,a tomato:red,milk:white,chocolate:brown,a leaf:green,the sea:blue,the sun:yellow,"
    "a raven:black,a cucumber:green,a cherry:red,a pumpkin:orange,a plum:purple,a flamingo:pink,"
    "an elephant:grey,salt:white,lavender:purple,a bear:brown,a pig:pink,a frog:green,blood:red,gold:yellow"
)
MIXTURES = {
    ("blue", "yellow"): "green",
    ("red", "yellow"): "orange",
    ("red", "blue"): "purple",
    ("red", "white"): "pink",
    ("black", "white"): "grey",
}

# animal: sound, young, home, food, legs
ANIMALS = {
    "dog": words_of("barks,puppy,kennel,meat,4", ","),
    "cat": words_of("meows,kitten,house,fish,4", ","),
    "cow": words_of("moos,calf,barn,grass,4", ","),
    "horse": words_of("neighs,foal,stable,hay,4", ","),
    "sheep": words_of("bleats,lamb,meadow,grass,4", ","),
    "pig": words_of("oinks,piglet,sty,vegetables,4", ","),
    "duck": words_of("quacks,duckling,pond,seeds,2", ","),
    "hen": words_of("clucks,chick,coop,corn,2", ","),
    "lion": words_of("roars,cub,savanna,meat,4", ","),
    "wolf": words_of("howls,pup,forest,meat,4", ","),
    "bear": words_of("growls,cub,cave,berries,4", ","),
    "frog": words_of("croaks,tadpole,pond,insects,4", ","),
    "owl": words_of("hoots,owlet,tree,mice,2", ","),
    "bee": words_of("buzzes,larva,hive,nectar,6", ","),
    "snake": words_of("hisses,snakelet,hole,mice,0", ","),
    "elephant": words_of("trumpets,calf,savanna,leaves,4", ","),
    "mouse": words_of("squeaks,pup,hole,cheese,4", ","),
    "goat": words_of("bleats,kid,hill,leaves,4", ","),
    "donkey": words_of("brays,foal,stable,hay,4", ","),
    "pigeon": words_of("coos,squab,loft,seeds,2", ","),
    "spider": words_of("is silent,spiderling,web,flies,8", ","),
    "ant": words_of("is silent,larva,anthill,leaves,6", ","),
    "rabbit": words_of("is silent,kit,burrow,carrots,4", ","),
    "fox": words_of("yelps,cub,den,mice,4", ","),
    "deer": words_of("bellows,fawn,forest,leaves,4", ","),
    "eagle": words_of("screeches,eaglet,nest,fish,2", ","),
    "whale": words_of("sings,calf,ocean,krill,0", ","),
}

NAMES = words_of(
    "Anna Ben Clara David Emma Felix Greta Hugo Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Umar Vera "
    "Will Yara Zoe Alice Bob Carol Dan Eve Frank Grace Henry Iris Jonas Karl Lena Max Nina Oscar Peter Ruth "
    "Simon Tom Ursula Victor Wendy Lucy Mark Nora Omar Pia Ralf Sara Theo Maria John James Laura Julia Martin "
    "Lily Ella Finn Amir Aisha Chen Mei Ravi Priya Kenji Yuki Carlos Sofia Diego Elena Ivan Olaf Ingrid"
)
FOODS = words_of("pizza pasta soup bread rice salad cake apples cheese pancakes noodles sushi tacos curry fish")
HOBBIES = words_of(
    "football chess swimming reading painting cooking dancing singing cycling hiking fishing gardening tennis"
)
COLOURS = words_of("red blue green yellow orange purple pink black white brown grey")
PETS = words_of("dog cat rabbit hamster parrot horse goldfish turtle")
JOBS = words_of("teacher doctor baker farmer nurse pilot painter driver singer writer cook engineer")
CITIES = tuple(CAPITALS.values()) + words_of(
    "Hamburg,Munich,Milan,Naples,Lyon,Barcelona,Porto,Geneva,Zurich,Krakow,Boston,Chicago,Seattle,New York,"
    "San Francisco,Los Angeles,Toronto,Montreal,Sydney,Melbourne,Mumbai,Osaka,Kyoto,Shanghai,Seoul,Singapore,"
    "Dubai,Istanbul,Manchester,Liverpool,Oxford,Bristol,Cologne,Dresden,Leipzig,Basel,Graz,Salzburg",
    ",",
)
LANGUAGES = words_of("German French Spanish Italian Dutch Polish Greek Turkish Japanese Russian")
THINGS = words_of(
    "book lamp chair table phone cup ball kite hat coat bag shoe clock pen ring boat train bike drum key mirror "
    "candle basket blanket bottle camera guitar umbrella jacket ladder"
)

_ONSETS = words_of("b br c ch d dr f fl g gr h j k l m n p pl r s sh st t th tr v w y z")
_VOWELS = words_of("a e i o u ai ee oo ou ia")
_VOWEL_STARTS = words_of("of in an un al or ow ex en us up if ed es am is it at as on ab el er ol om ig et")
_CODAS = ("", "", "", *words_of("n r l m s t k nd rn x"))


def made_up(rng: Random, syllables: int = 2) -> str:
    """A word that means nothing, with a capital: to learn copying from."""
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_CODAS)
    return word.capitalize()


def made_up_on_a_vowel(rng: Random) -> str:
    """One that begins as short words do (`of`, `in`): behind a space such a beginning is a token of its own, behind a
    quotation mark it is spelled by letters. For training alone."""
    return rng.choice(_VOWEL_STARTS) + made_up(rng, 1).lower()
