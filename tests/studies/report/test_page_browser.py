"""The page in a real browser: headless Chromium, driven by Selenium, opened from disk."""

import shutil

import pytest
from synthetic_runs import synthetic_run

from tensorprojection.studies.report.page import write
from tensorprojection.studies.report.run import read_run

pytestmark = pytest.mark.heavy

PHONE, DESK = 390, 1200
# Requests that are none: the page itself, and what is written out in it.
LOCAL = ("file://", "data:", "about:", "chrome:")


@pytest.fixture(scope="module")
def driver():
    webdriver = pytest.importorskip("selenium.webdriver", reason="no Selenium")
    browser, by = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or by is None:
        pytest.skip("no Chromium with its driver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=by)
    opened = webdriver.Chrome(options=options, service=service)
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    evil = "</script><script>document.title = 'run'</script>"
    # "avg" comes before "base" by the alphabet, and after it in the run.
    run = synthetic_run(
        folder / "run",
        models=("base", "tpl1", "tpl2", "avg"),
        class_names=(evil, "CNV", "DME", "DRUSEN"),
    )
    return write(read_run(run), folder / "out")


@pytest.fixture
def opened(driver, page):
    """``opened(width, dark)`` shows the page."""
    from selenium.webdriver.support.ui import WebDriverWait

    def show(width=DESK, dark=False):
        driver.get("about:blank")  # so that it is the new page, and loaded, that is worked with
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(page.as_uri())
        # On a busy machine get() was seen to return in the middle of it.
        whole = "return document.body !== null && document.body.dataset.drawn !== undefined"
        WebDriverWait(driver, 60).until(lambda shown: shown.execute_script(whole))
        return driver

    return show


def find(driver, selector):
    return driver.find_elements("css selector", selector)


def networks(driver, chart):
    """The names of the networks whose markers are drawn in a chart."""
    script = """
        const marks = arguments[0].querySelectorAll(".mark-symbol path");
        const names = [...marks].map(mark => mark.__data__.datum.network);
        return [...new Set(names.filter(name => name))];
    """
    return driver.execute_script(script, chart)


def test_it_opens_from_disk_without_a_request_or_an_error(opened):
    import json

    driver = opened()
    assert find(driver, "figure.chart svg")
    assert driver.get_log("browser") == []
    asked = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    addresses = [
        m["params"]["request"]["url"] for m in asked if m["method"] == "Network.requestWillBeSent"
    ]
    assert addresses
    assert all(address.startswith(LOCAL) for address in addresses)


def test_every_chart_is_drawn(opened):
    driver = opened()
    charts = find(driver, "[data-chart]")
    assert len(charts) == 19  # six metrics, their differences and sizes, the training
    assert all(networks(driver, chart) for chart in charts)


def test_markup_in_names_is_shown_and_not_run(opened):
    driver = opened()
    assert driver.title.startswith("Retinal OCT")
    text = driver.find_element("tag name", "body").get_attribute("textContent")
    assert "</script><script>document.title = 'run'</script>" in text


def test_hovering_shows_values(opened):
    from selenium.webdriver import ActionChains

    driver = opened()
    chart = find(driver, "#curves [data-chart]")[0]
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    mark = chart.find_elements("css selector", ".mark-symbol path")[0]
    ActionChains(driver).move_to_element(mark).pause(0.5).perform()
    shown = find(driver, "#vg-tooltip-element")[0].text
    value = driver.execute_script("return arguments[0].__data__.datum.value", mark)
    assert f"{value:.3g}" in shown


def test_a_click_hides_a_network_in_every_chart_and_another_shows_it_again(opened):
    from selenium.webdriver.support.ui import WebDriverWait

    driver = opened()
    charts = find(driver, "#curves [data-chart]")
    button = find(driver, '#curves .legend button[data-label="MaxPooling"]')[0]
    for pressed in ("false", "true"):
        driver.execute_script("arguments[0].click()", button)
        assert button.get_attribute("aria-pressed") == pressed
        for chart in charts:
            WebDriverWait(driver, 10).until(
                lambda shown, chart=chart, on=pressed == "true": (
                    ("MaxPooling" in networks(shown, chart)) == on
                )
            )
            assert "TensorProjection 1" in networks(driver, chart)


@pytest.mark.parametrize("dark", [False, True])
def test_at_phone_width_nothing_is_wider_than_the_screen(opened, dark):
    driver = opened(PHONE, dark)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= PHONE
    for figure in find(driver, "figure.chart"):
        assert figure.size["width"] <= PHONE
        drawn = figure.find_element("css selector", "svg")
        assert drawn.size["width"] <= figure.size["width"]
    wide = "return [...document.querySelectorAll('.scroll:has(.stacked)')].map(t => t.scrollWidth)"
    scores = driver.execute_script(wide)
    assert scores
    assert max(scores) <= PHONE


def test_light_and_dark_have_text_that_can_be_read(opened):
    """Contrast by the WCAG's formula, of text on the ground that it is on."""

    def luminance(colour):
        rgb = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    grounds = []
    for dark in (False, True):
        driver = opened(dark=dark)
        style = "return getComputedStyle(arguments[0]).{}"
        body = driver.find_element("tag name", "body")
        ground = luminance(driver.execute_script(style.format("backgroundColor"), body))
        grounds.append(ground)
        for selector in (
            "h1",
            ".hint",
            ".claims .word",
            "td small",
            "figcaption",
            ".notes li",
        ):
            text = luminance(
                driver.execute_script(style.format("color"), find(driver, selector)[0])
            )
            high, low = max(text, ground), min(text, ground)
            assert (high + 0.05) / (low + 0.05) >= 4.5
    assert grounds[0] > 0.5 > grounds[1]


def test_it_is_printed_on_white_and_whole_also_where_it_is_dark(opened):
    driver = opened(dark=True)
    parts = find(driver, "article details")
    assert {part.get_attribute("open") is not None for part in parts} == {True, False}
    assert len(driver.print_page()) > 10_000
    assert all(part.get_attribute("open") is not None for part in parts)  # nothing is folded away
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    body = driver.find_element("tag name", "body")
    ground = driver.execute_script("return getComputedStyle(arguments[0]).backgroundColor", body)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert ground == "rgb(255, 255, 255)"
