"""The HTML page: complete, escaped, of one file, and honest about runs that are not finished."""

import base64
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import catchment.report.figures
from catchment.errors import UserError
from catchment.report.page import html_report, write_report
from catchment.runs.reading import RunFiles

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that tags are closed in order; keeps text, tags and attributes."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.source = path.read_text(encoding="utf-8")
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return "\n".join(self.texts)

    def section(self, title):
        return self.text.partition(f"\n{title}\n")[2]


@pytest.fixture
def without_figures(monkeypatch):
    """For tests of the text around them: drawing takes most of the time."""
    monkeypatch.setattr(catchment.report.figures, "drawings", lambda runs: [])


@pytest.fixture
def page(tmp_path):
    def write(*directories):
        path = write_report([RunFiles.read(directory) for directory in directories], tmp_path / "out" / "page.html")
        assert path == tmp_path / "out" / "page.html"
        return Page(path)

    return write


def test_one_run(make_run, page):
    found = page(make_run())
    text = found.text
    for words in ("fedavg on digits with 3 clients", "50.00 %", "best 50.00 % in round 3", "1.76 KiB", "900 B"):
        assert words in text
    assert "37.50 \N{EN DASH} 62.50" in text
    assert "unfinished" not in text
    titles = [text.index(f"\n{title}\n") for title in ("What ran", "Figures", "Costs", "Data", "Events", "Experiment")]
    assert titles == sorted(titles)
    assert found.tags.count("svg") == 5
    assert found.tags.count("figure") == 5


@pytest.mark.usefixtures("without_figures")
def test_costs_data_and_experiment(make_run, page):
    found = page(make_run())
    costs, data = found.section("Costs"), found.section("Data")
    for words in ("6,090", "84,224", "local_training of cnn", "505 KiB", "not measured"):
        assert words in costs
    for words in ("dirichlet, alpha 0.5", "1,498", "103", "257", "299"):
        assert words in data
    assert 'name = "fedavg"' in found.section("Experiment")
    assert found.tags.count("details") == 1


def test_it_refers_to_nothing_outside_and_uses_ids_once(make_run, page):
    found = page(make_run("one"), make_run("two"))
    assert "http:" not in found.source
    assert "https:" not in found.source
    assert "script" not in found.tags
    assert not {"link", "img", "iframe", "object", "a"} & set(found.tags)
    names = {name for name, _ in found.attributes}
    assert "src" not in names
    assert not [name for name in names if name.startswith("on")]
    assert all(value.startswith("#") for name, value in found.attributes if name == "href")
    assert "@import" not in found.source
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 0


def test_hostile_text_is_only_text(make_run, page, parts):
    hostile = "</title><script>alert(1)</script><img src=x onerror=alert(1)> & \"'"
    event = parts.event("failed", why=f"<b>{hostile}\ud800")
    ledger = [{"round": 1, "entries": [parts.entry("up", [0], {f"weights/{hostile}"[:30]: 10}, purpose="<i>")]}]
    directory = make_run(
        "hostile",
        name=hostile,
        rounds=[parts.round(1, accuracy=0.5, events=[event])],
        ledger=ledger,
        result={"more": {"<u>": 1.0}, "costs": {"peak_memory": {"<s>": 5}}, "fingerprint": "<em>"},
    )
    for found in (page(directory), page(directory, make_run("other"))):
        assert not {"script", "img", "b", "i", "u", "s", "em"} & set(found.tags)
        assert hostile in found.text
        assert "<b></title>" in found.section("Events")
        assert "\ud800" not in found.text


def test_an_unfinished_run_says_so(make_run, page):
    found = page(make_run(result=None, planned=8))
    assert "unfinished: 3 of 8 rounds" in found.text
    assert ("class", "unfinished") in found.attributes
    assert "Known when the run is finished." in found.section("Costs")
    several = page(make_run("whole"), make_run("part", result=None, planned=8))
    assert several.text.count("unfinished: 3 of 8 rounds") == 1
    assert "3 of 8" in several.text


def test_a_run_that_has_nothing_yet(make_run, page):
    found = page(make_run(rounds=None, ledger=None, result=None))
    assert "unfinished: 0 of 3 rounds" in found.text
    assert "No round is finished yet." in found.section("Figures")
    assert "svg" not in found.tags


def test_missing_parts(make_run, page):
    only_result = make_run("only-result", rounds=None, ledger=None, result={"costs": None, "data": None})
    assert "50.00 %" in page(only_result).text
    no_ledger = make_run("no-ledger", ledger=None)
    assert page(no_ledger).tags.count("svg") == 2


def test_several_runs_are_compared(make_run, page, parts):
    eventful = make_run("eventful", rounds=[parts.round(1, accuracy=0.25, events=[parts.event("lost", why="gone")])])
    found = page(make_run("first"), make_run("second", result={"accuracy": 0.75, "more": {"gap": 0.125}}), eventful)
    text = found.text
    assert "3 runs compared" in text
    for words in ("first", "second", "75.00 %", "gap", "0.125"):
        assert words in text
    events = found.section("Events").partition("Experiment")[0]
    assert "gone" in events
    assert "eventful" in events
    assert "second" not in events
    shared = found.source.partition("<details>")[0]
    assert shared.count("<svg") == 4  # accuracy per round and byte, bytes per round, events
    assert found.tags.count("details") == 3 + 3  # figures and experiment of each


@pytest.mark.usefixtures("without_figures")
def test_runs_with_one_name_are_told_apart(make_run, page):
    text = page(make_run("seed-1", name="trial"), make_run("seed-2", name="trial")).text
    assert "trial (seed-1)" in text
    assert "trial (seed-2)" in text


@pytest.mark.usefixtures("without_figures")
def test_the_first_fifty_events(make_run, page, parts):
    events = [parts.event("lost", why=f"reason {number}.") for number in range(70)]
    section = page(make_run(rounds=[parts.round(1, accuracy=0.5, events=events)])).section("Events")
    assert "reason 49." in section
    assert "reason 50." not in section
    assert "The first 50 of 70." in section


@pytest.mark.usefixtures("without_figures")
def test_no_events(make_run, page):
    assert "Every reply arrived as asked." in page(make_run()).section("Events")


def test_the_same_runs_give_the_same_page(make_run, page):
    directory = make_run()
    assert page(directory).source == page(directory).source


@pytest.mark.usefixtures("without_figures")
def test_a_directory_as_target(make_run, tmp_path):
    assert write_report([RunFiles.read(make_run())], tmp_path) == tmp_path / "report.html"
    assert (tmp_path / "report.html").exists()


def test_nothing_to_report(tmp_path):
    with pytest.raises(UserError, match="at least one run"):
        write_report([], tmp_path / "report.html")


@pytest.mark.usefixtures("without_figures")
def test_a_target_that_cannot_be_written(make_run):
    directory = make_run()
    with pytest.raises(UserError, match=r"page\.html cannot be written: "):
        write_report([RunFiles.read(directory)], directory / "result.json" / "page.html")


def test_no_training_code_is_imported():
    """A report is made of files: making it needs neither torch nor Matplotlib's global state."""
    code = (
        "import sys, types, importlib.util\n"
        "package = types.ModuleType('catchment')\n"  # without what `import catchment` offers to users
        "package.__path__ = importlib.util.find_spec('catchment').submodule_search_locations\n"
        "sys.modules['catchment'] = package\n"
        "import catchment.report, catchment.report.figures\n"
        "print(sorted({'torch', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_bytes_to_reach_an_accuracy_are_in_the_report(make_run):
    page = html_report([RunFiles.read(make_run())])
    assert "<h2>Communication</h2>" in page
    assert "to 50 %" in page
    assert "to 60 %" not in page


# ---- attacks ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_figures")
def test_who_lied_and_who_was_flagged(make_run, page, parts):
    lies = {**parts.event("attacked", why="z 1.5; saw 7"), "numbers": {"z": 1.5, "z_formula": 0.18}}
    events = [lies, parts.event("flagged", why="size of features 3, others 1; kept")]
    attack = {"name": "lie", "attackers": [1], "used": [lies["numbers"]]}
    rounds = [parts.round(1, accuracy=0.5, events=events), parts.round(2, accuracy=0.5, events=events[1:])]
    found = page(make_run(rounds=rounds, result={"attack": attack}))
    section = found.section("Attacks and flags").partition("Events")[0]
    for words in ("lie", "z 1.5, z_formula 0.18", "mean", "size of features 3, others 1; kept", "yes"):
        assert words in section
    assert "Every reply arrived as asked." in found.section("Events")


@pytest.mark.usefixtures("without_figures")
def test_honest_runs_have_no_such_section(make_run, page):
    assert "Attacks and flags" not in page(make_run(result={"attack": None})).text


DOT = (  # a PNG file of one pixel
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU"
    b"\x00\x00\x00\nIDATx\x9cc\xf8\x0f\x00\x01\x01\x01\x00\x1b\xb6\xeeV\x00\x00\x00\x00IEND\xaeB`\x82"
)


def with_image(directory, content=DOT):
    (directory / "images").mkdir()
    (directory / "images" / "generator.png").write_bytes(content)
    return directory


def test_images_of_a_run_are_in_the_page(make_run, page, without_figures):
    found = page(with_image(make_run("one")))
    (source,) = [value for name, value in found.attributes if name == "src"]
    assert source == f"data:image/png;base64,{base64.b64encode(DOT).decode()}"
    assert "generator, after the last evaluation" in found.section("Images")
    assert "img-src data:" in found.source
    both = page(with_image(make_run("two")), make_run("none"))
    assert "two: generator" in both.section("Images")
    assert "\nImages\n" not in page(make_run("bare")).text


def test_a_damaged_image_is_named(make_run, page):
    with pytest.raises(UserError, match=r"images/generator\.png is damaged: it is not a PNG file"):
        page(with_image(make_run("one"), b"GIF89a"))


def test_accuracy_by_the_model_of_the_clients(make_run, page, without_figures):
    models = {"mlp": {"accuracy": 0.25}, "cnn": {"accuracy": 0.75}}
    text = page(make_run("one", result={"models": models}), make_run("two")).section("What ran")
    assert "mlp %" in text
    assert "25.00" in text
    assert "75.00" in text
    assert "Accuracy by the model of the clients" not in page(make_run("three")).text


def test_numbers_of_a_method_that_belong_together_are_one_figure(make_run, page, parts):
    rounds = [parts.round(n, accuracy=0.5) for n in (1, 2, 3)]
    for number, record in enumerate(rounds, start=1):
        record["more"] = {
            "norm_a": 0.001 * number,
            "norm_b": 1.0 * number,
            "alone_c": 3.0,
            "plain": 1.0,
            "norm_c": "no",
        }
    text = page(make_run(rounds=rounds)).text
    assert "Norm per round" in text
    assert "norm (logarithmic)" in text
    assert "Alone per round" not in text


LEAVES = [
    {
        "field": "features",
        "kind": "features",
        "shape": "float32 [n <= 7, 16]",
        "when": "train",
        "shows": "the <images>",
    },
    {"field": "accuracy", "kind": "metrics", "shape": "float", "when": "test", "shows": "how well it goes"},
]


def test_what_left_the_devices_is_shown_with_its_bytes(make_run, page, without_figures):
    sent = {"leaves": LEAVES, "bytes_by_field": {"up": {"features": 2048}, "down": {}}}
    text = page(make_run("one", result=sent)).section("What devices sent")
    rows = text.partition("\nShapes are")[0].strip().split("\n")
    assert rows[-12:] == [
        "features", "features", "float32 [n <= 7, 16]", "train", "2.00 KiB", "the <images>",
        "accuracy", "metrics", "float", "test", "\N{EN DASH}", "how well it goes",
    ]  # fmt: skip
    assert "\nWhat devices sent\n" not in page(make_run("old")).text


def probed(parts, number, best):
    likeness = {"correlation": 0.995, "psnr": 29.85, "ssim": 0.996, "identified": 1.0}
    floor = {"correlation": 0.733, "psnr": 12.05, "ssim": 0.625, "identified": 0.0}
    found = {"client": 0, "images": 107, "private": 1600, "best": best}
    return {**parts.round(number, accuracy=0.5), "probe": {**found, "attacks": {"mean image": floor, best: likeness}}}


def test_what_a_curious_server_could_see_is_shown_with_pictures(make_run, page, parts, without_figures):
    directory = make_run("one", rounds=[probed(parts, 1, "linear map"), parts.round(2), probed(parts, 3, "decoder")])
    (directory / "images").mkdir()
    for number in (1, 3):
        (directory / "images" / f"inversion-{number}.png").write_bytes(DOT)
    found = page(directory)
    text = found.section("What a curious server could see")
    for words in ("linear map (best)", "decoder (best)", "0.995", "29.9", "100.00", "107 among 1,600", "mean image"):
        assert f"\n{words}\n" in text
    assert "one, round 3: private images above" in text
    assert found.tags.count("img") == 2
    assert "\nImages\n" not in found.text
    assert "curious" not in page(make_run("two")).text


def test_what_clients_said_of_themselves_is_marked(make_run, page, without_figures):
    said = {"self_reported": ["accuracy", "clients"], "models": {"mlp": {"accuracy": 0.25}}}
    one = make_run("one", result=said)
    text = page(one).section("What ran")
    assert "best 50.00 % in round 3, self-reported" in text
    assert "\naccuracy, clients\n" in text
    assert "Self-reported numbers were measured by the clients" in text
    assert "\n50.00 self-reported\n" in text
    assert "Some are self-reported." in text
    both = page(one, make_run("measured")).section("What ran")
    assert both.count("accuracy self-reported") == 1
    assert "elf-reported" not in page(make_run("plain")).text


def test_an_unfinished_run_marks_them_too(make_run, page, parts, without_figures):
    rounds = [{**parts.round(1, accuracy=0.25), "self_reported": ["clients"]}]
    text = page(make_run(rounds=rounds, result=None)).section("What ran")
    assert "\nself-reported\n" in text
    assert "\nclients\n" in text


# ---- many clients -----------------------------------------------------------------------------------------------


def test_a_report_does_not_grow_with_the_clients(make_run, page, parts):
    clients = 100_000
    flagged = [parts.event("flagged", client=client, why="far from all others") for client in range(0, clients, 10)]
    directory = make_run(
        rounds=[parts.round(1, accuracy=0.5, events=flagged)],
        ledger=[{"round": 1, "entries": [parts.entry("up", range(0, clients, 2), {"weights": 1024})]}],
        result={"attack": {"name": "lie", "attackers": list(range(0, clients, 5)), "used": []}},
        planned=1,
    )
    toml = (directory / "experiment.toml").read_text().replace("clients = 3", f"clients = {clients}")
    (directory / "experiment.toml").write_text(toml)
    found = page(directory)
    assert len(found.source) < 200_000
    for words in (
        "Of 100,000 clients 50,000 had traffic, each from 1.00 KiB to 1.00 KiB, up and down together; 50,000 had none.",
        "90, 95, … (20,000 in all)",
        "The 50 of 10,000 that were flagged in most rounds.",
    ):
        assert words in found.text


@pytest.mark.usefixtures("without_figures")
def test_of_many_flagged_clients_those_flagged_most_often_are_listed(make_run, page, parts):
    once = [parts.event("flagged", client=client, why="once") for client in range(60)]
    again = [parts.event("flagged", client=59, why="again")]
    rounds = [parts.round(1, accuracy=0.5, events=once), parts.round(2, events=again)]
    section = page(make_run(rounds=rounds, planned=2)).section("Attacks and flags").partition("Events")[0]
    assert section.split("why\n")[1].startswith("59\n2\n1\nonce\n0\n1\n1\nonce\n")
    assert section.count("once") == 50
