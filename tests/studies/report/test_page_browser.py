"""The page in a real browser: headless Chromium, driven by Selenium, opened from disk."""

import shutil

import pytest
from synthetic_runs import synthetic_run

from tensorprojection.studies.report.page import write

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
        name_of="<img src=x onerror=x>",
    )
    return write([run, synthetic_run(folder / "second", trials=6, epochs=4)], folder / "out")


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
        whole = "return document.URL !== 'about:blank' && document.readyState === 'complete'"
        WebDriverWait(driver, 60).until(lambda shown: shown.execute_script(whole))
        return driver

    return show


def find(driver, selector):
    return driver.find_elements("css selector", selector)


def colours(driver, figure):
    """The colours in a chart's canvas, and how many pixels have each."""
    script = """
        const canvas = arguments[0].querySelector("canvas");
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const counts = {};
        for (let k = 0; k < data.length; k += 4) {
            if (data[k + 3] < 250) continue;
            const key = `${data[k]},${data[k + 1]},${data[k + 2]}`;
            counts[key] = (counts[key] || 0) + 1;
        }
        return counts;
    """
    return driver.execute_script(script, figure)


# MaxPooling and the first two TensorProjections, as in the figures
BLUE, ORANGE, GREEN = "0,114,178", "213,94,0", "0,158,115"


def hover(driver, figure):
    from selenium.webdriver import ActionChains

    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
    over = figure.find_element("css selector", ".u-over")
    ActionChains(driver).move_to_element(over).pause(0.1).perform()
    return figure.find_element("css selector", ".tip")


def test_it_opens_from_disk_without_a_request_or_an_error(opened):
    import json

    driver = opened()
    assert find(driver, "figure.chart canvas")
    assert driver.get_log("browser") == []
    asked = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    addresses = [
        m["params"]["request"]["url"] for m in asked if m["method"] == "Network.requestWillBeSent"
    ]
    assert addresses
    assert all(address.startswith(LOCAL) for address in addresses)


def test_every_chart_is_drawn(opened):
    driver = opened()
    figures = find(driver, "figure.chart")
    assert len(figures) == 4 + 2 * (4 + 4 + 4)
    for figure in figures:
        assert figure.find_element("css selector", "figcaption").get_attribute("textContent")
        drawn = colours(driver, figure)
        assert ORANGE in drawn  # which has a line in each


def test_markup_in_names_is_shown_and_not_run(opened):
    driver = opened()
    assert driver.title == "2 runs side by side"
    text = driver.find_element("tag name", "body").get_attribute("textContent")
    assert "</script><script>document.title = 'run'</script>" in text
    assert "<img src=x onerror=x>-" in text


def test_hovering_shows_values(opened):
    driver = opened()
    figure = find(driver, "#run1-curves figure.chart")[1]
    tip = hover(driver, figure)
    assert tip.is_displayed()
    lines = tip.text.splitlines()
    assert lines[0] == "epoch 3"
    medians = driver.execute_script(
        "return JSON.parse(document.getElementById('data').textContent)"
        ".charts.run1.metrics[1].lines.map(line => line.median[2].toFixed(4))"
    )
    assert [line.split(": ")[1].split(" ")[0] for line in lines[1:]] == medians


def test_a_click_hides_a_network_everywhere_and_another_shows_it_again(opened):
    driver = opened()
    figures = find(driver, "#run1-curves figure.chart")
    button = find(driver, '#run1-curves .legend button[data-model="base"]')[0]
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    assert all(BLUE in colours(driver, figure) for figure in figures)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    for figure in figures:
        drawn = colours(driver, figure)
        assert BLUE not in drawn
        assert ORANGE in drawn
    others = find(driver, '#run1-matrices .legend button[data-model="base"]')
    assert others[0].get_attribute("aria-pressed") == "false"
    assert "MaxPooling" not in hover(driver, figures[0]).text
    driver.execute_script("arguments[0].click()", button)
    assert all(BLUE in colours(driver, figure) for figure in figures)


def test_single_trials_are_drawn_on_demand(opened):
    driver = opened()
    figure = find(driver, "#run1-curves figure.chart")[1]
    before = sum(colours(driver, figure).values())
    driver.execute_script("document.querySelector('input.trials').click()")
    assert colours(driver, figure) != before
    assert sum(colours(driver, figure).values()) != before


def test_differences_can_be_taken_from_another_network(opened):
    driver = opened()
    figure = find(driver, "#run1-differences figure.chart")[0]
    assert BLUE not in colours(driver, figure)  # MaxPooling minus itself
    assert GREEN in colours(driver, figure)
    choice = find(driver, "#run1-differences select.reference")[0]
    driver.execute_script(
        "arguments[0].value = 'tpl1'; arguments[0].dispatchEvent(new Event('change'))", choice
    )
    drawn = colours(driver, figure)
    assert BLUE in drawn
    assert ORANGE not in drawn
    assert "ahead in" in hover(driver, figure).text


@pytest.mark.parametrize("dark", [False, True])
def test_at_phone_width_nothing_is_wider_than_the_screen(opened, dark):
    driver = opened(PHONE, dark)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= PHONE
    for figure in find(driver, "figure.chart"):
        assert figure.size["width"] <= PHONE
        canvas = figure.find_element("css selector", "canvas")
        assert canvas.size["width"] <= figure.size["width"]


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
        for selector in ("h1", ".hint", ".claims .word", "nav a", "td small", "figcaption"):
            text = luminance(
                driver.execute_script(style.format("color"), find(driver, selector)[0])
            )
            high, low = max(text, ground), min(text, ground)
            assert (high + 0.05) / (low + 0.05) >= 4.5
    assert grounds[0] > 0.5 > grounds[1]


def test_it_is_printed_on_white_also_where_it_is_dark(opened):
    driver = opened(dark=True)
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    body = driver.find_element("tag name", "body")
    ground = driver.execute_script("return getComputedStyle(arguments[0]).backgroundColor", body)
    assert ground == "rgb(255, 255, 255)"
    driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    after = driver.execute_script("return getComputedStyle(arguments[0]).backgroundColor", body)
    assert after != ground
    assert len(driver.print_page()) > 10_000


def test_what_is_folded_away_is_printed_and_folded_again(opened):
    driver = opened()
    parts = find(driver, "article details")
    states = [part.get_attribute("open") is not None for part in parts]
    assert len(set(states)) == 2  # some are open from the start
    whole = "return document.documentElement.scrollHeight"
    before = driver.execute_script(whole)
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert all(part.get_attribute("open") is not None for part in parts)
    assert driver.execute_script(whole) > before
    driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert [part.get_attribute("open") is not None for part in parts] == states
