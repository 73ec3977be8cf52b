"""More kinds of tools than `toolkinds.py` has: files, shells, houses, calendars, databases, and things with verbs."""

from collections.abc import Sequence
from functools import cache
from random import Random

from . import values, words
from .toolkinds import Kind, Schema, Values
from .values import Draw, one_of, quoted, several, switch, whole

STRING: Schema = "string"
INTEGER: Schema = "integer"
NUMBER: Schema = "number"
BOOLEAN: Schema = "boolean"
LIST: Schema = {"type": "array", "items": {"type": "string"}}

Parameter = tuple[str, Schema, Draw]


def choice_of(*ways: str) -> tuple[Schema, Draw]:
    """A parameter of a few values: its schema and its values."""
    return {"type": "string", "enum": list(dict.fromkeys(way.partition("=")[0] for way in ways))}, one_of(*ways)


def _says(r: Random, v: Values) -> tuple[dict[str, object], str]:
    key = r.choice(("result", "content", "output", "value", "text", "answer"))
    said: object = values.sentence(r) if r.random() < 0.5 else values.term(r) if r.random() < 0.5 else values.number(r)
    return {key: said}, f"Here is the answer: {said}"


def _done(r: Random, v: Values) -> tuple[dict[str, object], str]:
    said: list[dict[str, object]] = [{"status": "ok"}, {"success": True}, {"result": "done"}]
    said += [{"ok": True}, {"status": "success"}]
    return r.choice(said), "Done."


def kind_of(names: str, about: str, parameters: Sequence[Parameter], asks: Sequence[str], says: bool = False) -> Kind:
    draws = [draw for _, _, draw in parameters]
    shapes = tuple((tuple(named.split()), schema) for named, schema, _ in parameters)
    result = _says if says else _done
    return Kind(
        tuple(names.split()), tuple(about.split("|")), shapes, lambda r: tuple(d(r) for d in draws), tuple(asks), result
    )


_PATH: Parameter = ("path file filename file_path name", STRING, quoted(values.path))
_FOLDER: Parameter = ("path directory dir folder", STRING, quoted(values.folder))
_ROOM: Parameter = ("room area place zone location", STRING, values.room)
_TERM: Parameter = ("query q text search_term term keywords", STRING, quoted(values.term))
_COMMAND: Parameter = ("command cmd command_line script input", STRING, quoted(values.command))
_ID: Parameter = ("id sensor sensor_id device name entity", STRING, values.code_of)
_HOST: Parameter = ("host hostname address target server", STRING, values.host)
_URL: Parameter = ("url link address page uri", STRING, values.url)
_DAY: Parameter = ("date day when on", STRING, values.day)
_TITLE: Parameter = ("title name subject summary event", STRING, quoted(values.term))
_TEXT: Parameter = ("text message content body note", STRING, quoted(values.sentence))
_PERSON: Parameter = ("person name to user recipient contact", STRING, values.person)
_CITY: Parameter = ("city location place", STRING, values.place)
_POWER: Parameter = ("on state enabled power active", BOOLEAN, switch("on", "off"))
_QUESTION_OF_STATE = "[What|Which value|What value] does {0} [show|say|report|read|have][?| now?]"

_SHOPS = words.words_of("restaurants museums parks hotels cafes pharmacies cinemas shops banks schools")
_DOORS = words.words_of("back side main cellar balcony garden shed")
_PYTHON = (
    "print({0})", "{0} + {1}", "len('{2}')", "sum([{0}, {1}])", "import {2}", "max({0}, {1})", "{0} ** 2",
    "'{2}'.upper()", "print('{2}')", "range({0})", "{2} = {0}",
)  # fmt: skip


def _python(r: Random) -> str:
    return r.choice(_PYTHON).format(r.randint(1, 99), r.randint(1, 99), values.stem(r))


def _any_of(*ways: str) -> Draw:
    return lambda r: r.choice(ways)


def _branch(r: Random) -> str:
    kind = r.choice(("", "", "", "", "", "fix/", "feat/", "dev/", "release/", "bug/"))
    return kind + values.stem(r)


def _repository(r: Random) -> str:
    return values.stem(r) if r.random() < 0.5 else f"{values.stem(r)}/{values.stem(r)}"


def _shop(r: Random) -> str:
    return r.choice(_SHOPS)


def _door(r: Random) -> str:
    return r.choice((*_DOORS, values.stem(r)))


def _errand(r: Random) -> str:
    return r.choice(_TO_DO) + r.choice((" the ", " ", " ", " my ", " some ", " a ")) + values.stem(r)


_TO_DO = words.words_of(
    "buy call clean find sell repair paint water feed pay fetch send bring wash check read write cook visit order"
)

ANY_KINDS = (
    # Files
    kind_of("read_file view_file file_read open_file cat_file get_file_contents load_file",
          "Read a file|Read the contents of a file|Return the text of a file|Show what a file contains|Open a "
          "file and give back what is in it", [_PATH], ["Read {0}.",
          "[Show|Open|Print|Display|Read|Cat|View] [the file |file |me |]{0}.",
          "What [is|does|stands|is written] in [the file |]{0}?", "What does [the file |]{0} [contain|say]?",
          "[Show|Tell|Give] me [what is in|the contents of|the content of|the text of] {0}.",
          "I [want|need|would like] to [see|read|look at] {0}.", "Let me [see|read] [the file |]{0}.",
          "[Have|Take] a look [at|into] {0}."], says=True),
    kind_of("list_files list_dir ls dir_list files_in show_folder get_directory",
          "List the files in a folder|Show what is in a directory|List directory contents|Returns the names of "
          "all files of a directory|Files and folders under a path", [_FOLDER], ["List {0}.",
          "List the [files|contents|entries] [in|of] {0}.", "[What|Which] files are [in|under] {0}?",
          "What is [in the folder|in the directory|inside] {0}?", "Show me [the folder|the directory|what is in] {0}.",
          "[Show|Tell|Give] me [the files|all files|everything] in {0}.", "ls {0}", "What do I have in {0}?"],
          says=True),
    kind_of("write_to_file save_file file_write create_file put_file store_text",
          "Write text to a file|Save a text as a file|Create a file with a content|Stores text under a path",
          [("path file filename file_path", STRING, values.path), ("content text data body", STRING,
          quoted(values.sentence))], ["Write {1} to {0}.", "[Save|Store|Put] {1} [in|to|into|as] {0}.",
          "[Create|Make] [a file|the file|a new file] [called |named |]{0} [with the text|with the content|that "
          "says|containing|with] {1}.", "Make {0} with {1} in it.", "Write into {0}: {1}",
          "[Save|Write] the text {1} [to|in|into] [the file |]{0}."]),
    kind_of("append_to_file add_line file_append", "Append a line to a file|Add text to the end of a file",
          [("path file filename", STRING, values.path), ("line text content", STRING, quoted(values.sentence))],
          ["Append {1} to {0}.", "Add [the line |the text |]{1} to [the end of |the file |]{0}.",
          "[Attach|Put] {1} at the end of {0}."]),
    kind_of("move rename rename_file mv file_move", "Move a file|Rename a file|Move or rename a file or folder",
          [("source from old_path src old_name", STRING, values.path), ("destination to new_path dst new_name", STRING,
          values.path)], ["Move {0} to {1}.", "[Rename|Move|Change] [the file |]{0} [to|into] {1}.",
          "{0} [should be called|is now|must be named] {1}.", "Give {0} the [new |]name {1}."]),
    kind_of("copy_file duplicate cp file_copy", "Copy a file|Make a copy of a file at another path",
          [("source from src original", STRING, values.path), ("destination to dst copy target", STRING, values.path)],
          ["Copy {0} to {1}.", "[Make|Put|I need] a copy of {0} [at|in|as] {1}.", "Duplicate {0} [to|as] {1}."]),
    kind_of("delete_file remove_file rm unlink trash", "Delete a file|Remove a file from disk|Throws a file away",
          [_PATH], ["Delete {0}.", "[Delete|Remove|Erase|Trash|Throw away] [the file |]{0}.", "Get rid of {0}.",
          "I [don't|no longer] need {0}[.| any more.]"]),
    kind_of("make_directory mkdir create_folder new_folder", "Create a folder|Make a directory|Creates a new directory",
          [_FOLDER], ["Create the folder {0}.",
          "[Make|Create|Add] [a folder|a directory|a new folder] [called |named |]{0}.",
          "I need [a folder|a directory] {0}.", "mkdir {0}"]),
    kind_of("grep search_files find_in_files search_code",
          "Search for a text in files|Find files that contain a word|Search code",
          [("pattern text query word", STRING, quoted(values.stem)), ("path directory folder where", STRING,
          values.folder)], ["Search for {0} in {1}.", "[Find|Look for|Grep|Search] {0} in [the folder |]{1}.",
          "Which files in {1} [contain|have|mention] {0}?", "Where is {0} in {1}?", "[Search|Scan] {1} for {0}."],
          says=True),
    kind_of("file_size get_size stat file_info", "Size of a file|How large a file is|Get information on a file",
          [_PATH], ["How [large|big|long] is {0}?", "What is the size of {0}?", "[Get|Show|Tell me] the size of {0}.",
          "How many bytes has {0}?"], says=True),
    # Shells and machines
    kind_of("run_command shell exec run_shell terminal bash execute run_in_terminal",
          "Run a command|Run a shell command|Execute a command in a shell|Runs a command line and gives its "
          "output|Run something in the terminal|A Linux shell", [_COMMAND], ["Run {0}.",
          "[Run|Execute|Start|Launch|Do] [the command |]{0}.",
          "[Run|Execute] {0} [for me|in the shell|in the terminal|on the command line][.|, please.]",
          "What [does|is the output of] {0}[?| print?| say?]", "[Type|Enter] {0} [in the shell|in the terminal].",
          "I want [you |]to run {0}.", "run {0}", "Use the [shell|terminal] [to run|for] {0}."], says=True),
    kind_of("run_python python execute_code python_interpreter code_runner",
          "Run Python code|Execute a piece of Python|Evaluates Python",
          [("code script source program", STRING, quoted(_python))], ["Run the Python code {0}.",
          "[Run|Execute|Evaluate] {0} [in Python|with Python].", "What does Python [say|give] for {0}?", "Python: {0}"],
          says=True),
    kind_of("ping_host check_host is_up reachable", "Ping a host|Check if a host is up|Tells whether a machine answers",
          [_HOST], ["Ping {0}.", "Is {0} [up|online|alive|reachable|down|there]?",
          "[Check|See|Test] [if|whether] {0} is [up|online|reachable].", "Does {0} [answer|respond]?",
          "Can [you|we] reach {0}?"], says=True),
    kind_of("stop_process end_process kill terminate",
          "Kill a process|End a process by its number|Stops a running program",
          [("pid process process_id id", INTEGER, whole(2, 99999))], ["Kill {0}.",
          "[Kill|End|Stop|Terminate] [the process|process|pid|the pid] {0}.",
          "Process {0} [must stop|has to go|hangs]."]),
    kind_of("service_restart restart restart_unit reload_service",
          "Restart a service|Restarts a daemon|Stop and start a service",
          [("service unit name daemon", STRING, values.stem)], ["Restart {0}.",
          "[Restart|Reload|Reboot] [the service |the |]{0}[.| service.]",
          "{0} [hangs|is stuck|must be restarted][.|, restart it.]"]),
    kind_of("service_status unit_status is_running", "Status of a service|Tells whether a service runs",
          [("service unit name daemon", STRING, values.stem)], ["Is [the service |]{0} running?",
          "[What is|Show me|Check] the status of [the service |]{0}[?|.]", "Does {0} run?",
          "How is [the service |]{0} [doing|going]?"], says=True),
    kind_of("disk_usage free_space storage", "Free disk space|How full the disk is|Disk usage of a machine", [],
          ["How full is the disk?", "[How much|What] [disk space|space] [is|do we have] [left|free]?",
          "[Show|Check|Tell me] the disk [usage|space]."], says=True),
    kind_of("take_screenshot screenshot capture_screen", "Take a screenshot|Captures the screen", [],
          ["Take a screenshot.", "[Take|Make] a [screenshot|picture of the screen|screen capture].",
          "[Capture|Grab|Photograph] the screen.", "Screenshot, please."]),
    # Houses
    kind_of("sensor_value get_sensor sensor_reading query_sensor measure",
          "Read a sensor|Current value of a sensor|Gives what a sensor measures|Query a sensor by its name", [_ID],
          ["Read the sensor {0}.", "[Read|Check|Query|Get|Show me] [sensor|the sensor|device] {0}.", _QUESTION_OF_STATE,
          "What does [sensor|the sensor|device] {0} [show|say|report|measure|read]?",
          "What is the [value|reading] of [sensor |the sensor |]{0}?", "[Value|Reading] of {0}[?|, please.]"],
          says=True),
    kind_of("room_temperature get_temperature temperature_of indoor_temperature",
          "Temperature of a room|How warm a room is|Measures a room's temperature", [_ROOM],
          ["How warm is it in the {0}?", "How [cold|hot|warm] is the {0}?", "What is the temperature [in|of] the {0}?",
          "Temperature in the {0}?", "[Measure|Check|Tell me] the temperature in the {0}."], says=True),
    kind_of("humidity get_humidity air_humidity moisture",
          "Humidity of a room|How damp the air is|Air moisture in a room", [_ROOM],
          ["How [humid|damp|dry] is [it in |]the {0}?", "What is the humidity in the {0}?",
          "[Check|Measure] the humidity in the {0}."], says=True),
    kind_of("set_temperature set_thermostat thermostat heat_room set_heating",
          "Set the temperature of a room|Set the thermostat|Heats a room to some degrees", [_ROOM,
          ("temperature degrees target value celsius", NUMBER, whole(5, 30))], ["Set the {0} to {1} degrees.",
          "[Heat|Cool|Bring|Turn] the {0} to {1}[ degrees|].", "[Make it|I want|I'd like] {1} degrees in the {0}.",
          "[Set|Change|Put] the [heating|thermostat|temperature] [in|of] the {0} to {1}[ degrees|].",
          "The {0} [should be|must be at] {1} degrees.",
          "Set the {0} [heating|thermostat|temperature] to {1}[ degrees|]."]),
    kind_of("set_lock door_lock lock_door smart_lock", "Lock or unlock a door|Controls a lock|Locks doors",
          [("door name lock which", STRING, _door), ("locked lock closed state", BOOLEAN,
          switch("Lock|Please lock|Close and lock", "Unlock|Please unlock|Open"))], ["{1} the {0} door.",
          "{1} the {0} door now."]),
    kind_of("switch set_switch toggle_device power_switch plug turn",
          "Switch a device on or off|Turns a device on and off|Power of a device",
          [("device name what target", STRING, values.stem), _POWER], ["Turn {1} the {0}.",
          "[Switch|Turn|Put] {1} the {0}.", "[Switch|Turn] the {0} {1}[.|, please.]",
          "The {0} [should be|must go] {1}.", "{0} {1}, please."]),
    kind_of("set_brightness dim dim_light light_level", "Set the brightness of a light|Dims the light of a room",
          [_ROOM, ("brightness level percent value", INTEGER, whole(0, 100))], ["Dim the {0} to {1}.",
          "[Dim|Set] the [light|lamp|lights] in the {0} to {1}[ percent| %|].",
          "[Set|Put] the {0} [light|lamp] to {1} percent.", "{1} percent light in the {0}."]),
    kind_of("set_light_color light_colour color", "Set the colour of a light|Change the colour of the lamp in a room",
          [_ROOM, ("color colour", *choice_of(*words.COLOURS))], ["Make the {0} light {1}.",
          "[Turn|Make|Set|Change] the [light|lamp] in the {0} [to |]{1}.", "[I want|Give me] {1} light in the {0}."]),
    kind_of("blinds set_blinds shutters shades move_blinds",
          "Open or close the blinds|Moves the shutters of a room|Controls the shades", [_ROOM,
          ("action state position direction",
          *choice_of("open=Open", "close=Close", "up=Raise", "down=Lower", "open=Please open", "close=Please close"))],
          ["{1} the blinds in the {0}.", "{1} the [blinds|shutters|shades|curtains] [in|of] the {0}.",
          "{1} the {0} [blinds|shutters|shades|curtains]."]),
    kind_of("robot_vacuum cleaner vacuum_control vacuum_cleaner",
          "Control the vacuum robot|Starts and stops the cleaning robot",
          [("command action what", *choice_of("start=Start", "stop=Stop", "pause=Pause", "return=Send home",
          "locate=Find", "start=Please start"))], ["{0} the vacuum cleaner.",
          "{0} the [cleaning robot|robot|vacuum robot|hoover]."]),
    kind_of("alarm_system security arm_alarm", "Arm or disarm the alarm system|Sets the house's alarm",
          [("mode state", *choice_of("arm=Arm", "disarm=Disarm", "arm=Switch on", "disarm=Switch off"))],
          ["{0} the alarm system.", "{0} the [house alarm|security system|burglar alarm]."]),
    kind_of("camera get_camera camera_snapshot show_camera", "Picture of a camera|Shows what a camera sees",
          [("camera name id location", STRING, values.room)], ["Show the {0} camera.",
          "[Show|Give|Get] me the {0} camera.", "What does the {0} camera [see|show]?",
          "[Who|What] is [at|in] the {0}?"], says=True),
    kind_of("set_oven oven preheat", "Preheat the oven|Set the oven to a temperature",
          [("degrees temperature value", INTEGER, whole(50, 275))], ["Preheat the oven to {0} degrees.",
          "[Heat|Set|Turn] the oven to {0}[ degrees|].", "[I need|Make] the oven at {0} degrees."]),
    kind_of("set_fan fan_speed fan ventilation", "Set the speed of a fan|Speed of the fan",
          [("speed level", *choice_of("low", "medium", "high", "off"))], ["Set the fan to {0}.",
          "[Put|Turn|Switch] the fan [to |on |]{0}.", "Fan {0}[.|, please.]"]),
    kind_of("volume change_volume speaker_volume sound_level",
          "Set the volume|Sets how loud the speaker is|Change loudness",
          [("volume level percent value", INTEGER, whole(0, 100))], ["Volume {0}.",
          "[Set|Turn|Put|Change] the [volume|sound|speaker] to {0}[ percent|].", "Make it {0} percent loud.",
          "Volume [to|at] {0}[.|, please.]"]),
    kind_of("media_control player control_player playback", "Control the player|Pauses, resumes and skips",
          [("action command", *choice_of("pause=Pause", "resume=Resume", "next=Skip", "stop=Stop",
          "previous=Go back in"))],
          ["{0} the music.", "{0} the [player|song|playback|radio]."]),
    # Calendars, mail, notes
    kind_of("add_event create_event calendar_add schedule_event new_appointment",
          "Create a calendar event|Add an appointment to the calendar|Schedules an event", [_TITLE, _DAY],
          ["Add {0} to my calendar on {1}.", "[Put|Add|Enter|Note] {0} [in|on|into] [my|the] calendar [for|on] {1}.",
          "[Schedule|Plan|Book] {0} [for|on] {1}.", "[Create|Make|Add] [an event|an appointment] {0} [on|for] {1}.",
          "I have {0} on {1}.[ Put it in my calendar.| Add it to my calendar.]", "On {1}: {0}.[ Note it.|]"]),
    kind_of("calendar_event_at add_meeting create_meeting", "Create a meeting at a time of a day|Plans a meeting",
          [_TITLE, _DAY, ("time start at", STRING, values.clock)], ["Schedule {0} on {1} at {2}.",
          "[Plan|Book|Add|Create] [a meeting |the meeting |]{0} [on|for] {1} at {2}.",
          "[Put|Enter] {0} in my calendar for {1} at {2}.", "Meeting {0}, {1}, {2}."]),
    kind_of("get_calendar calendar agenda show_events day_plan",
          "Show the calendar of a day|Events of a day|Lists appointments on a date", [_DAY],
          ["What is on my calendar on {0}?", "[What|Which] [appointments|meetings|events|plans] do I have [on |]{0}?",
          "[Show|Read|Tell] me my [calendar|agenda|plan] [for|of] {0}.", "What [happens|is planned|is on] {0}?",
          "Am I [free|busy] [on |]{0}?", "[Do I have|Is there] anything [on |]{0}?"], says=True),
    kind_of("cancel_event delete_event remove_appointment", "Cancel an event|Remove an appointment from the calendar",
          [_TITLE], ["Cancel {0}.",
          "[Cancel|Delete|Remove] [the event|the appointment|the meeting|my appointment] {0}.",
          "{0} is [cancelled|off]."]),
    kind_of("search_mail find_mail mailbox inbox_search",
          "Search emails|Find messages in the mailbox|Looks through the inbox", [_TERM],
          ["Search my [mail|emails|inbox|mailbox] for {0}.",
          "[Find|Show me] [emails|mails|messages] [about|on|with] {0}.",
          "[Do I have|Is there|Did I get] [any |a |]mail about {0}?",
          "[Look|Check] in my [inbox|mailbox|mail] for {0}."], says=True),
    kind_of("mail_to send_message_to compose", "Send an email to an address|Write an email with a text",
          [("to address recipient", STRING, values.mail), _TEXT], ["Send {0} the message {1}.",
          "[Mail|Email|Write|Send] {0}: {1}",
          "[Send|Write] [an email|a mail] to {0} [saying|that says|with the text] {1}."]),
    kind_of("read_inbox new_mail unread unread_mail", "Show unread mail|Gets new emails", [], ["Do I have new mail?",
          "[Show|Read|Check|Get] my [new |unread |]mail.", "[Check|Open] my [inbox|mailbox].", "Any [new |]mail?"],
          says=True),
    kind_of("send_sms text_message sms message", "Send a text message|Send an SMS to somebody", [_PERSON, _TEXT],
          ["Text {0}: {1}", "[Send|Write] {0} [a message|an SMS|a text]: {1}", "[Tell|Let] {0} [know |]{1}.",
          "Send {1} to {0}.", "Message {0} {1}."]),
    kind_of("post_to_channel chat_post send_to_channel post", "Post a message to a chat channel|Writes into a channel",
          [("channel room where to", STRING, values.stem), _TEXT], ["Post {1} to {0}.",
          "[Post|Write|Send|Say] {1} [in|to|on] [the channel |channel |#|]{0}.",
          "[Tell|Write to] the channel {0}: {1}"]),
    kind_of("add_note take_note note save_note memo write_note",
          "Take a note|Save a note|Writes down a text|Adds to the notes", [_TEXT], ["Note: {0}",
          "[Note down|Write down|Take a note|Make a note|Remember]: {0}", "[Add|Save] [the note|a note] {0}.",
          "[Write|Put] {0} in my notes."]),
    kind_of("add_task add_todo todo create_task new_task",
          "Add a task to the to-do list|Creates a task|New entry of the todo list",
          [("task title text item", STRING, quoted(values.sentence))],
          ["Add {0} to my [tasks|to-do list|todo list|todos].", "[New|Add the|Create a|Add a] task: {0}",
          "[Put|Write] {0} on my [todo|to-do] list.", "I have to {0}.[ Add a task.| Put it on my list.]"]),
    kind_of("complete_task finish_task check_off tick_task", "Mark a task as done|Ticks off a task",
          [("task id title number", STRING, values.code_of)], ["Task {0} is done.",
          "[Mark|Tick off|Finish|Complete|Check off] [the task |task |]{0}[.| as done.]"]),
    kind_of("shopping_list add_items buy_list groceries add_groceries",
          "Add items to the shopping list|Puts things on the list of groceries",
          [("items things list products", LIST, several(values.stem))], ["Add {0} to the shopping list.",
          "[Put|Add|Write] {0} [on|to] [my|the|our] [shopping list|list|grocery list].",
          "[I need|We need|Buy|Get] {0}.", "We are out of {0}."]),
    kind_of("countdown start_countdown egg_timer kitchen_timer run_timer",
          "Start a countdown|Counts down some minutes|Rings after some minutes",
          [("minutes length duration time m", INTEGER, whole(1, 120))], ["Count {0} minutes.",
          "[Start|Set|Run|Make|Begin] [a|the] {0} [minute|minutes|min] [countdown|timer|clock].",
          "[A|The] countdown [of|for|from] {0} minutes.", "{0} [minutes|min] [timer|on the clock|countdown].",
          "[Ring|Beep|Call me] [in|after] {0} minutes."]),
    kind_of("countdown_seconds timer_seconds wait sleep", "Wait some seconds|Counts down seconds",
          [("seconds length duration s", INTEGER, whole(1, 3600))], ["Wait {0} seconds.",
          "[Start|Set] a {0} second [timer|countdown].", "[Sleep|Pause|Count] [for |]{0} seconds."]),
    kind_of("remind_me add_reminder reminder new_reminder",
          "Remind the user of something|Creates a reminder|Saves what must not be forgotten",
          [("text what task about message", STRING, _errand)], ["Remind me to {0}.",
          "[Remind|Please remind] me to {0}.", "Don't let me forget to {0}.", "[Set|Make|Add] a reminder to {0}.",
          "I [must|have to|should] {0}.[ Remind me.|]", "Reminder: {0}"]),
    kind_of("heat_of temperature_sensor thermometer degrees_of",
          "How warm something is|Temperature of a thing|Reads a thermometer",
          [("what name place thing sensor", STRING, values.stem)], ["How warm is the {0}?",
          "[Can you|Could you|Please] [check|tell me|look up] how [hot|cold|warm] the {0} is[?|.]",
          "How [hot|cold|warm] is [it in |]the {0}[?| now?]", "[What is|Tell me] the temperature of the {0}[?|.]",
          "Is the {0} [hot|warm|cold] [enough|yet|now]?"], says=True),
    # Data, web, conversions
    kind_of("sql_query query_database db_query execute_sql database run_sql",
          "Run an SQL query|Query the database|Executes SQL and returns rows",
          [("query sql statement q", STRING, quoted(values.sql))], ["Run {0}.",
          "[Run|Execute|Do] [the query|the SQL|this query|this SQL|this][:|] {0}", "[Query|Ask] the database: {0}",
          "What does {0} [give|return]?", "SQL: {0}", "{0}"], says=True),
    kind_of("describe_table table_schema get_schema columns", "Columns of a table|Describe a table of the database",
          [("table name table_name", STRING, values.stem)], ["Describe the table {0}.",
          "[What|Which] columns [has|does] the table {0}[?| have?]",
          "[Show|Give] me the [schema|columns|structure] of [the table |]{0}."], says=True),
    kind_of("row_count table_size count_records how_many", "Count the rows of a table|How many records a table has",
          [("table name collection table_name", STRING, values.stem)],
          ["How many [rows|records|entries] [are in|has] [the table |]{0}?",
          "[Count|Tell me] the [rows|records|number of rows] [of|in] [the table |]{0}.",
          "How [big|large|long] is the table {0}?"], says=True),
    kind_of("list_tables show_tables tables", "List all tables|Names of the tables in the database", [],
          ["List the tables.", "[What|Which] tables [are there|does the database have|exist]?",
          "[Show|Give|Tell] me [all |the |]tables."], says=True),
    kind_of("convert_units convert unit_convert conversion measure_convert",
          "Convert between units|Convert a number from a unit to another|Unit conversion",
          [("value amount number quantity", NUMBER, values.number), ("from from_unit source unit", STRING, values.unit),
          ("to to_unit target into", STRING, values.unit)], ["Convert {0} {1} to {2}.",
          "[Convert|Change|Turn] {0} {1} [to|into|in] {2}.", "How many {2} [are|is|make] {0} {1}?",
          "What [are|is] {0} {1} in {2}?", "{0} {1} in {2}[?|, please.]", "How much [are|is] {0} {1} in {2}?",
          "I need {0} {1} in {2}."], says=True),
    kind_of("exchange_rate fx currency_convert convert_money", "Convert money between currencies|Exchange rate",
          [("amount value sum", NUMBER, values.number), ("from from_currency base source", STRING,
          _any_of("USD", "EUR", "GBP", "JPY", "CHF", "SEK", "INR")), ("to to_currency target quote", STRING,
          _any_of("USD", "EUR", "GBP", "JPY", "CHF", "NOK", "CNY"))], ["Convert {0} {1} to {2}.",
          "[Convert|Change|Exchange] {0} {1} [to|into|for] {2}.", "How much [is|are] {0} {1} in {2}?",
          "How many {2} [is|are] {0} {1}?",
          "What is {0} {1} in {2}?"], says=True),
    kind_of("open_url browse get_page download_page visit http_get",
          "Fetch a web page|Open a page in the browser|Downloads a URL", [_URL], ["Open {0}.",
          "[Open|Fetch|Get|Load|Visit|Browse|Download|Go to] [the page |the site |]{0}.",
          "What [is on|does the page say at|is at] {0}?", "[Read|Show] me [the page |]{0}.",
          "[Summarize|Look at] {0}."], says=True),
    kind_of("internet_search google look_up news_search bing online_search",
          "Search the internet|Look something up on the web|Web search engine|Finds pages", [_TERM],
          ["Search the web for {0}.", "[Google|Look up|Search|Search for] {0}[.| online.| on the internet.]",
          "[Find|Look for] [something|information|pages|news] [about|on] {0}.",
          "[What|Is there anything] [does the web say |on the web |]about {0}?",
          "[Search|Check] the [net|web|internet] for {0}."], says=True),
    kind_of("wiki wikipedia encyclopedia lookup_article", "Look up an article|Search an encyclopedia",
          [("title topic article subject", STRING, quoted(values.term))], ["Look up {0} in the encyclopedia.",
          "[Find|Show|Open|Read] the article [on|about] {0}.", "What does [the encyclopedia|Wikipedia] say about {0}?"],
          says=True),
    kind_of("define dictionary define_word meaning",
          "Define a word|Meaning of a word|Looks a word up in the dictionary",
          [("word term", STRING, quoted(values.stem))], ["Define {0}.", "What does [the word |]{0} mean?",
          "[What is|Give me|Look up] the [meaning|definition] of {0}[?|.]"], says=True),
    kind_of("find_recipes recipes cook recipe_search", "Find a recipe|Recipes with an ingredient",
          [("ingredient query food dish", STRING, values.stem)], ["Find a recipe with {0}.",
          "[Find|Give|Show|Look for] [me |][a recipe|recipes|something to cook] [with|for] {0}.",
          "What can I cook with {0}?", "How do I [cook|make] {0}?"], says=True),
    kind_of("random_number random pick_number", "A random number between two numbers|Draws a number",
          [("min low from", INTEGER, whole(0, 50)), ("max high to", INTEGER, whole(51, 9999))],
          ["Give me a random number between {0} and {1}.",
          "[Pick|Draw|Choose|Think of] a [random |]number [from {0} to|between {0} and] {1}.",
          "Random number, {0} to {1}."], says=True),
    kind_of("generate_password password make_password", "Generate a password|Password of some length",
          [("length n characters size", INTEGER, whole(6, 64))], ["Generate a password with {0} characters.",
          "[Make|Create|I need|Give me] a password [of|with] {0} [characters|letters].", "Password, {0} characters."],
          says=True),
    kind_of("hash sha256 checksum digest", "Hash a text|Checksum of a text",
          [("text data input", STRING, quoted(values.stem))], ["Hash {0}.",
          "[What is|Compute|Give me] the [hash|checksum] of {0}[?|.]"], says=True),
    kind_of("generate_image draw paint create_image image", "Generate an image|Draws a picture from a description",
          [("prompt description text", STRING, quoted(values.term))], ["Draw {0}.",
          "[Draw|Paint|Make|Generate|Create] [a picture of|an image of] {0}.", "I want a picture of {0}."]),
    kind_of("tell_joke joke get_joke", "Tell a joke|Returns a random joke", [], ["Tell me a joke.",
          "[Tell|Give] me [a joke|something funny].", "[A joke|Something funny], please."], says=True),
    kind_of("get_date today current_date datetime now", "Current date and time|Which day it is", [], ["What day is it?",
          "[What|Which] [day|date] is [it|today]?", "What time is it?", "[Tell|Give] me the [time|date].",
          "What is [the date|the time|today's date]?"], says=True),
    # Code
    kind_of("checkout switch_branch git_switch change_branch", "Switch to a branch|Check out a git branch",
          [("branch name ref", STRING, _branch)], ["Check out {0}.",
          "[Check out|Switch to|Go to|Change to] [the branch |branch |]{0}.",
          "I want to [work|be] on [the branch |branch |]{0}."]),
    kind_of("commit git_commit commit_changes", "Commit the changes|Make a git commit with a message",
          [("message text title", STRING, quoted(values.sentence))], ["Commit with the message {0}.",
          "[Commit|Commit the changes|Commit everything|Make a commit] [as|with the message|saying] {0}.",
          "Commit: {0}"]),
    kind_of("open_issue new_issue report_bug file_issue", "Open an issue|Create an issue in a repository",
          [("repository repo project", STRING, _repository), _TITLE], ["Open an issue in {0}: {1}",
          "[Open|Create|File|Make] [an issue|a bug|a ticket] [in|for|at] {0} [called|titled|with the title|about] "
          "{1}."]),
    kind_of("run_tests test pytest test_runner", "Run the tests|Runs the tests of a file or folder",
          [("path file target", STRING, values.path)], ["Run the tests in {0}.",
          "[Run|Execute|Start] the tests [in|of] {0}.", "Test {0}.", "Do the tests [in|of] {0} pass?"], says=True),
    # Going places, buying
    kind_of("find_nearby places_search nearby poi", "Find places near a city|Search places",
          [("what query kind category", STRING, _shop), _CITY], ["Find {0} in {1}.",
          "[Find|Show|Look for|Search] [me |]{0} [in|near|around] {1}.", "[Which|What] {0} are [there |]in {1}?",
          "Are there {0} in {1}?"], says=True),
    kind_of("directions route navigate get_route", "Directions between two places|How to get from one place to another",
          [("origin from start", STRING, values.place), ("destination to end goal", STRING, values.place)],
          ["How do I get from {0} to {1}?", "[Show|Give|Find] me the [way|route|directions] from {0} to {1}.",
          "[Navigate|Route|Directions] from {0} to {1}.", "Which way is it from {0} to {1}?"], says=True),
    kind_of("book_table reserve restaurant_booking reserve_table", "Book a table in a restaurant|Reserves a table",
          [("restaurant name place", STRING, values.person), ("people guests persons party_size", INTEGER,
          whole(1, 20)), ("time at when", STRING, values.clock)], ["Book a table at {0} for {1} at {2}.",
          "[Reserve|Get|Book] [me |us |]a table for {1} [people |persons |]at {0} at {2}.",
          "A table for {1} at {0}, {2}, please."]),
    kind_of("parcel_status package_tracking shipment where_is",
          "Track a parcel|Where a shipment is|Status of a delivery",
          [("number tracking_id id code parcel", STRING, values.code_of)], ["Where is parcel {0}?",
          "[Track|Find|Trace] [the parcel|my parcel|the shipment|my package|package] {0}.",
          "[When does|Has] [parcel|my package|the shipment] {0} [arrive|arrived]?",
          "Where is my [parcel|package|delivery] {0}?"], says=True),
    kind_of("order_product buy order purchase", "Order a product|Buys some of a product",
          [("product item article", STRING, values.stem), ("quantity amount count number", INTEGER, whole(1, 60))],
          ["Order {1} {0}.", "[Order|Buy|Get] [me |us |]{1} {0}.", "I [want|need|would like] {1} {0}.",
          "{1} {0}, please."]),
    kind_of("multiply product times", "Multiply two numbers|Product of two numbers",
          [("a x first left", NUMBER, values.number), ("b y second right", NUMBER, values.number)],
          ["Multiply {0} and {1}.", "[Multiply|Please multiply] {0} [by|and|with] {1}.", "What is {0} times {1}?",
          "{0} times {1}[?|.]"], says=True),
)  # fmt: skip

_THINGS = words.words_of(
    "invoice:invoices ticket:tickets order:orders customer:customers container:containers server:servers job:jobs "
    "playlist:playlists document:documents project:projects contract:contracts printer:printers camera:cameras "
    "sensor:sensors device:devices account:accounts report:reports photo:photos album:albums booking:bookings "
    "package:packages employee:employees product:products channel:channels webhook:webhooks deployment:deployments "
    "pipeline:pipelines cluster:clusters volume:volumes snapshot:snapshots certificate:certificates user:users "
    "group:groups role:roles license:licenses subscription:subscriptions payment:payments recipe:recipes book:books "
    "machine:machines robot:robots pump:pumps valve:valves heater:heaters gate:gates schedule:schedules page:pages "
    "comment:comments event:events member:members campaign:campaigns coupon:coupons shipment:shipments tank:tanks "
    "warehouse:warehouses patient:patients course:courses student:students team:teams match:matches bucket:buckets "
    "queue:queues topic:topics agent:agents model:models dataset:datasets experiment:experiments room:rooms car:cars "
    "vehicle:vehicles drone:drones lamp:lamps plant:plants greenhouse:greenhouses meter:meters battery:batteries"
)
_MADE_UP_THINGS = tuple(
    f"{noun}:{noun}s" for noun in {words.made_up(_r).lower(): None for _r in map(Random, range(400))}
)
_CODE: Parameter = ("id {noun} {noun}_id name number key", STRING, values.code_of)
_NAMED: Parameter = (
    "name title {noun} {noun}_name label",
    STRING,
    quoted(lambda r: values.term(r) if r.random() < 0.3 else values.stem(r)),
)

# Each: function names, descriptions, parameters, what the user says, whether a result has something to tell.
_VERBS: tuple[tuple[str, str, tuple[Parameter, ...], tuple[str, ...], bool], ...] = (
    ("get_{noun} show_{noun} {noun}_details fetch_{noun} lookup_{noun} view_{noun}",
     "Get {a} by its id|Look up {a}|Show the details of {a}|Returns one of the {nouns}", (_CODE,), ("Show {noun} {0}.",
     "[Show|Get|Fetch|Find|Look up|Open|Give] [me |][the |]{noun} {0}.",
     "What [is|about|do we know about] [the |]{noun} {0}?", "I [need|want] [to see |][the |]{noun} {0}.",
     "[Tell me|Details] [about|of|on] {noun} {0}."), True),
    ("{noun}_status check_{noun} get_{noun}_status state_of_{noun}",
     "Status of {a}|Check how {a} is doing|Tells the state of {a}", (_CODE,), ("What is the status of {noun} {0}?",
     "[Check|Tell me|Show|Get] the [status|state] of [the |]{noun} {0}.", "How is [the |]{noun} {0} [doing|now|going]?",
     "Is [the |]{noun} {0} [ok|ready|fine|done|all right]?", "Check [the |]{noun} {0}."), True),
    ("delete_{noun} remove_{noun} drop_{noun} {noun}_delete",
     "Delete {a}|Remove {a} for good|Deletes one of the {nouns}", (_CODE,), ("Delete {noun} {0}.",
     "[Delete|Remove|Drop|Erase|Get rid of] [the |]{noun} {0}.",
     "[The |]{noun} {0} [can go|must go|is no longer needed]."), False),
    ("create_{noun} new_{noun} add_{noun} make_{noun} {noun}_create",
     "Create {a}|Make a new one of the {nouns}|Adds {a} with a name", (_NAMED,), ("Create a {noun} called {0}.",
     "[Create|Add|Make|Set up|I need] [a|a new|another] {noun} [called|named|with the name] {0}.", "New {noun}: {0}",
     "Add {noun} {0}."), False),
    ("start_{noun} run_{noun} {noun}_start launch_{noun}", "Start {a}|Starts one of the {nouns}", (_CODE,),
     ("Start {noun} {0}.", "[Start|Launch|Boot|Begin|Start up] [the |]{noun} {0}.",
     "[The |]{noun} {0} [should run|must start]."), False),
    ("stop_{noun} halt_{noun} {noun}_stop shut_down_{noun}", "Stop {a}|Shuts {a} down", (_CODE,), ("Stop {noun} {0}.",
     "[Stop|Halt|Shut down|End] [the |]{noun} {0}.", "[The |]{noun} {0} [should|must] stop."), False),
    ("restart_{noun} reboot_{noun} {noun}_restart", "Restart {a}|Stops and starts {a}", (_CODE,),
     ("Restart {noun} {0}.", "[Restart|Reboot|Reset] [the |]{noun} {0}.", "[The |]{noun} {0} needs a restart."), False),
    ("cancel_{noun} {noun}_cancel", "Cancel {a}|Cancels one of the {nouns}", (_CODE,), ("Cancel {noun} {0}.",
     "[Cancel|Call off|Revoke] [the |my |]{noun} {0}.", "I [don't|no longer] want [the |]{noun} {0}."), False),
    ("archive_{noun} {noun}_archive store_{noun}", "Archive {a}|Moves {a} to the archive", (_CODE,),
     ("Archive {noun} {0}.", "[Archive|File away] [the |]{noun} {0}.",
     "[Put|Move] [the |]{noun} {0} [in|into|to] the archive."), False),
    ("print_{noun} {noun}_print", "Print {a}|Prints {a} on paper", (_CODE,), ("Print {noun} {0}.",
     "[Print|Print out] [the |]{noun} {0}.", "I need [the |]{noun} {0} on paper."), False),
    ("list_{nouns} get_{nouns} all_{nouns} show_{nouns}",
     "List all {nouns}|Returns every one of the {nouns}|Names of the {nouns}", (), ("List the {nouns}.",
     "[List|Show|Show me|Give me] [all |the |all the |]{nouns}.", "[Which|What] {nouns} [are there|do we have|exist]?",
     "What [are|are all] the {nouns}?"), True),
    ("count_{nouns} number_of_{nouns} {noun}_count", "Count the {nouns}|How many {nouns} there are", (),
     ("How many {nouns} are there?", "How many {nouns} [are there|do we have|exist]?",
     "[Count|Tell me the number of] the {nouns}."), True),
    ("rename_{noun} {noun}_rename", "Rename {a}|Gives {a} another name", (_CODE, ("new_name name to title", STRING,
     quoted(values.stem))), ("Rename {noun} {0} to {1}.", "[Rename|Change] [the |]{noun} {0} [to|into] {1}.",
     "Call {noun} {0} {1}.", "{noun} {0} [is now called|should be called] {1}."), False),
    ("assign_{noun} give_{noun} {noun}_assign", "Assign {a} to a person|Gives {a} to somebody", (_CODE, _PERSON),
     ("Assign {noun} {0} to {1}.", "[Assign|Give|Hand|Pass] [the |]{noun} {0} to {1}.",
     "{1} [gets|should get|takes] [the |]{noun} {0}."), False),
    ("share_{noun} send_{noun} {noun}_share", "Share {a} with a person|Sends {a} to somebody", (_CODE,
     ("email with to address", STRING, values.mail)), ("Share {noun} {0} with {1}.",
     "[Share|Send] [the |]{noun} {0} [with|to] {1}."), False),
    ("set_{noun}_status update_{noun} mark_{noun}", "Set the status of {a}|Marks {a}", (_CODE, ("status state",
     *choice_of("open", "closed", "pending", "done", "blocked"))), ("Set {noun} {0} to {1}.",
     "[Mark|Set|Put|Change] [the |]{noun} {0} [as|to] {1}.", "[The |]{noun} {0} is {1}."), False),
    ("set_{noun}_limit {noun}_limit limit_{noun}", "Set the limit of {a}|Limits {a} to a number", (_CODE,
     ("limit max value amount", INTEGER, whole(1, 9999))), ("Set the limit of {noun} {0} to {1}.",
     "[Limit|Cap] [the |]{noun} {0} [to|at] {1}.", "[The |]{noun} {0} may have [at most |up to |]{1}."), False),
    ("enable_{noun} {noun}_enabled toggle_{noun} switch_{noun}", "Enable or disable {a}|Turns {a} on or off", (_CODE,
     ("enabled on active", BOOLEAN,
     switch("Enable|Activate|Turn on|Switch on", "Disable|Deactivate|Turn off|Switch off"))), ("{1} {noun} {0}.",
     "{1} the {noun} {0}."), False),
)  # fmt: skip
_ALIKE = ({"get_{noun}", "{noun}_status"}, {"delete_{noun}", "cancel_{noun}", "archive_{noun}", "stop_{noun}"})


@cache
def _verb_kind(verb: int, thing: str) -> Kind:
    noun, nouns = thing.split(":")
    a = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    names, about, parameters, asks, says = _VERBS[verb]

    def put(text: str) -> str:
        return text.replace("{nouns}", nouns).replace("{noun}", noun).replace("{a}", a)

    shaped = [(put(named), schema, draw) for named, schema, draw in parameters]
    return kind_of(put(names), put(about), shaped, [put(ask) for ask in asks], says)


def verb_kinds(r: Random, n: int) -> list[Kind]:
    """Tools that do something to one kind of thing: one thing and several verbs, or several things and one verb."""
    things = r.sample(_THINGS if r.random() < 0.8 else _MADE_UP_THINGS, n)
    chosen: list[int] = []
    while len(chosen) < n:
        verb = r.randrange(len(_VERBS))
        first = {_VERBS[v][0].split()[0] for v in (*chosen, verb)}
        if verb not in chosen and not any(len(alike & first) > 1 for alike in _ALIKE):
            chosen.append(verb)
    if r.random() < 0.6:
        return [_verb_kind(verb, things[0]) for verb in chosen]
    return [
        _verb_kind(chosen[0] if r.random() < 0.5 else verb, thing) for verb, thing in zip(chosen, things, strict=True)
    ]
