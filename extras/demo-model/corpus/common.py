"""Common words, so that whatever a user names is made of pieces that were copied before. Written for this corpus."""

from random import Random

from .words import words_of

COMMON = words_of(
    # Food and kitchen
    "milk butter yogurt cream egg eggs flour sugar salt pepper honey jam oats cereal beans lentils peas corn carrot "
    "carrots potato potatoes tomato onion onions garlic ginger spinach broccoli cabbage lettuce mushroom mushrooms "
    "pumpkin olive olives lemon lemons lime orange banana bananas grape grapes peach pear plum cherry mango melon "
    "coconut almond walnut peanut raisin vanilla cinnamon basil parsley mint mustard ketchup vinegar oil syrup juice "
    "soda beer cider whisky cocoa espresso latte sandwich burger sausage bacon ham beef pork chicken turkey lamb steak "
    "salmon tuna shrimp crab lobster omelette waffle muffin cookie cookies donut pie pudding candy snack "
    "lasagna risotto burrito kebab dumpling stew broth sauce spoon fork knife plate bowl mug pan pot kettle toaster "
    "blender oven stove fridge freezer dishwasher microwave sink napkin tray jar lid recipe menu dessert appetizer "
    # House and things
    "door window wall floor roof ceiling stairs chimney fence gate porch driveway mailbox doorbell curtain carpet "
    "pillow mattress sofa couch armchair bench stool desk shelf drawer closet wardrobe dresser bookcase cupboard "
    "bucket broom mop sponge towel soap shampoo toothbrush razor comb brush scissors needle thread button zipper iron "
    "hammer nail screw screwdriver wrench drill saw axe shovel rake hose rope chain lock padlock hinge pipe faucet "
    "shower bathtub toilet heater fan vent thermostat bulb lantern torch flashlight switch socket plug fuse wire "
    "sensor alarm siren speaker television remote antenna projector console joystick vacuum sprinkler fireplace candle "
    "vase clock calendar diary envelope stamp postcard parcel box crate barrel sack suitcase backpack wallet purse "
    "coin ticket badge label sticker poster banner flag magnet whistle bell balloon puzzle toy doll kite marble dice "
    # Clothes and body
    "shirt blouse sweater hoodie vest jeans trousers shorts skirt dress suit tie scarf glove gloves sock socks boot "
    "boots sandal sneaker slipper belt pocket sleeve collar helmet goggles glasses necklace bracelet earring crown "
    "head face eye ear nose mouth tooth tongue neck shoulder arm elbow wrist hand finger thumb chest back stomach "
    "knee ankle foot heel skin bone muscle heart lung liver brain blood fever cough allergy medicine vitamin aspirin "
    # Nature
    "sun moon star sky cloud rain snow hail storm thunder lightning fog frost ice breeze hurricane tornado rainbow "
    "ocean sea lake pond stream creek waterfall beach shore cliff cave hill peak canyon swamp meadow field prairie "
    "jungle woods grass moss leaf root trunk branch flower rose tulip daisy lily sunflower cactus bamboo pine oak "
    "maple birch willow palm seed soil sand stone rock pebble clay gold silver copper bronze iron tin lead diamond "
    "tiger leopard panther zebra giraffe camel llama kangaroo koala monkey gorilla squirrel beaver otter badger "
    "hedgehog bat rat hamster seal dolphin shark octopus jellyfish turtle lizard crocodile snail worm butterfly moth "
    "wasp beetle mosquito dragonfly falcon hawk raven crow sparrow robin swan goose penguin ostrich parrot peacock "
    # Places and people
    "house home apartment hotel hostel cabin cottage castle palace temple church mosque school college university "
    "hospital clinic pharmacy bakery butcher grocery market mall store shop restaurant cafe bar pub theater stadium "
    "arena gym pool court park playground zoo farm ranch factory mine port airport station platform garage highway "
    "street avenue road lane alley crossing tunnel roundabout corner square village town city county province nation "
    "border capital embassy court prison police fire army navy mayor president minister judge lawyer officer soldier "
    "guard sailor captain driver mechanic plumber electrician carpenter builder architect designer artist poet author "
    "editor actor dancer musician coach athlete student professor scientist chemist surgeon dentist vet waiter chef "
    "barber tailor clerk cashier manager boss owner partner colleague neighbour friend guest cousin uncle aunt brother "
    "sister mother father mom dad son daughter baby grandma grandpa wife husband family crowd crew squad club tribe "
    # Work, computers, money
    "computer server desktop screen mouse keypad tablet router modem switch firewall gateway proxy client browser tab "
    "window menu icon cursor button dialog form field value record row column table view trigger cluster node pod "
    "container image volume bucket queue worker thread process service daemon kernel driver module package library "
    "plugin feature branch commit merge release version patch hotfix bugfix issue ticket sprint backlog roadmap "
    "milestone review feedback comment thread channel general random support billing security marketing finance legal "
    "research operations logistics staff hiring onboarding training workshop seminar lecture lesson course exam quiz "
    "grade homework essay thesis chapter article journal magazine newspaper headline column blog post tweet caption "
    "draft final agenda minutes memo note notes outline proposal quote estimate receipt payroll salary bonus tax loan "
    "rent mortgage insurance pension savings account balance deposit transfer refund discount coupon voucher price "
    "cost profit loss revenue expense expenses debt credit cash dollar euro bitcoin ethereum shares stock bond fund "
    "orders clients customers users members visitors employees teachers doctors patients players teams groups events "
    "products items parts tools files folders pictures photos videos songs albums books pages letters messages mails "
    "phones cameras watches headphones monitors printers tables chairs lamps shoes shirts bags bikes cars "
    # Leisure, travel
    "soccer basketball baseball volleyball hockey golf rugby cricket badminton boxing judo karate yoga pilates running "
    "jogging walking climbing skiing skating surfing sailing rowing diving camping picnic barbecue party concert opera "
    "ballet musical comedy drama thriller horror western cartoon documentary podcast jazz rock pop blues soul funk "
    "metal techno reggae country folk classical piano violin cello flute trumpet saxophone organ harp banjo melody "
    "rhythm lyrics chorus album playlist stage ticket journey trip tour cruise flight voyage passport visa luggage "
    "airline runway pilot seat aisle bus tram subway metro taxi truck van motorcycle helicopter rocket balloon ferry "
    "canoe yacht anchor harbor lighthouse compass map guide souvenir spa massage "
    # Time, qualities, verbs
    "morning noon afternoon evening midnight dawn sunset weekend holiday season spring summer autumn winter decade "
    "best worst new old cheap free fast slow quick easy hard simple fresh warm cool cold hot dry wet clean dirty dark "
    "bright loud quiet soft sharp round flat wide narrow short long tall deep heavy light big small tiny huge empty "
    "full open closed early late young modern ancient local global public private secret famous popular rare common "
    "strange funny sad happy angry tired hungry thirsty sick healthy strong weak rich poor kind brave calm busy lazy "
    "safe dangerous urgent important broken missing lost ready final daily weekly monthly yearly "
    "call write read send buy sell bring take find fix check clean cook bake wash iron fold pack unpack move carry "
    "lift push pull throw catch kick jump climb ride drive park fly swim dive sail paint draw sing dance play record "
    "watch listen speak talk ask answer explain describe compare choose pick count measure weigh build repair replace "
    "install remove update upgrade restart cancel confirm book reserve order pay return renew print scan copy share "
    "meet visit invite greet thank welcome remember forget learn teach study practice train test plan start finish "
    "stop wait sleep wake rest breathe water feed walk brush plant grow cut trim dig sweep dust polish charge "
    # Ideas and the rest
    "idea plan goal dream hope fear love hate trust truth lie story tale legend myth riddle joke poem song word "
    "sentence letter number figure shape circle triangle line angle area volume weight height width length depth "
    "speed force energy power light sound color taste smell heat pressure temperature humidity density mass charge "
    "atom molecule cell gene virus bacteria fossil dinosaur mammal reptile insect species planet orbit asteroid "
    "telescope microscope laser magnet engine turbine generator pump valve filter lens mirror prism circuit chip "
    "language grammar accent alphabet culture tradition religion politics election vote law rule right duty freedom "
    "peace war battle treaty empire kingdom queen king prince princess knight wizard dragon ghost monster pirate "
    "treasure island oasis pyramid statue monument museum gallery exhibit painting sculpture portrait sketch",
)


def blend(r: Random) -> str:
    """The beginning of one word and the end of another."""
    one, two = r.choice(COMMON), r.choice(COMMON)
    return one[: r.randint(2, max(2, len(one) - 1))] + two[-r.randint(2, max(2, len(two) - 1)) :]
