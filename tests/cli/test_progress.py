"""The progress of a run in the terminal and in a log."""

import io
import re

import pytest
from rich.console import Console

from tensorprojection.cli.progress import Watch
from tensorprojection.cli.terminal import table
from tensorprojection.studies.config import RunConfig
from tensorprojection.studies.oct import PRESETS
from tensorprojection.studies.training.job import Done, Epoch, Failed, Job, Notice, Restarted, Step

CONFIG = RunConfig(study="oct", **PRESETS["smoke"] | {"epochs": 4})
ONE, TWO = Job(0, "base"), Job(0, "tpl1")


def row(epoch):
    return {
        "epoch": epoch,
        "train_loss": 0.9871,
        "loss": 0.5 / epoch,
        "accuracy": 0.75,
        "f1": 0.7123,
        "seconds": 1.5,
        "code": "0.1.0 abc, torch 2",
    }


class Seen:
    """A watch whose console is a string; of a terminal, the screen as it was drawn last."""

    def __init__(self, terminal, width=100, clock=None):
        self.file = io.StringIO()
        get_time = None if clock is None else lambda: clock[0]
        self.console = Console(
            file=self.file, force_terminal=terminal, width=width, get_time=get_time
        )
        self.watch = Watch(self.console)

    def lines(self):
        return self.file.getvalue().splitlines()

    def drawn(self):
        """The bars as they are now, without colours."""
        console = Console(file=io.StringIO(), width=self.console.width)
        console.print(self.watch.bars.get_renderable())
        return console.file.getvalue()


@pytest.fixture
def plain():
    return Seen(terminal=False)


@pytest.fixture
def terminal():
    return Seen(terminal=True)


def whole_unit(watch, unit):
    for epoch in range(1, 5):
        watch.show(Step(unit, epoch, 32, 0.25 * 32 / 44))
        watch.show(Step(unit, epoch, 12, 0.25 * 12 / 44))
        watch.show(Epoch(unit, row(epoch)))
    watch.show(Done(unit))


# Where no bars can be drawn


def test_a_plain_line_for_each_epoch_and_unit(plain):
    with plain.watch as watch:
        watch.begin(CONFIG.epochs, 2, {ONE: 0, TWO: 0})
        whole_unit(watch, ONE)
        whole_unit(watch, TWO)
    expected = []
    for unit in ("trial 1 base", "trial 1 tpl1"):
        for epoch, loss in enumerate(("0.500", "0.250", "0.167", "0.125"), start=1):
            expected.append(f"{unit}, epoch {epoch}/4, loss {loss}, accuracy 0.750, f1 0.712")
        expected.append(f"{unit}, 4 epochs, loss 0.125, accuracy 0.750, f1 0.712")
    assert plain.lines() == expected
    assert "\x1b" not in plain.file.getvalue()


def test_names_with_codes_for_a_terminal_are_shown_and_not_run(plain):
    name = "a\x1b]0;title\x07.png"
    with plain.watch as watch:
        watch.notice(name)
        watch.console.print(table(["file"], [[name]]))
    text = plain.file.getvalue()
    assert not set("\x1b\x07") & set(text)
    assert text.count(r"a\x1b]0;title\x07.png") == 2


def test_a_notice_has_its_line(plain, terminal):
    for seen in (plain, terminal):
        with seen.watch as watch:
            watch.begin(CONFIG.epochs, 2, {ONE: 0, TWO: 0})
            watch.show(Notice(ONE, "its checkpoint [1] is gone."))
        assert "trial 1 base: its checkpoint [1] is gone." in seen.file.getvalue()


def test_lines_are_not_broken_however_long(plain):
    with plain.watch as watch:
        watch.notice("a folder " * 40)
    assert plain.lines() == ["a folder " * 40]


def test_what_was_made_before_training(plain):
    with plain.watch as watch:
        for done in (16, 32, 1600):
            watch.preparing("features of copies", done, 1600)
        watch.begin(CONFIG.epochs, 1, {ONE: 0})
    assert plain.lines()[0] == "Made features of copies: 1,600, cached."
    assert len(plain.lines()) == 1


def test_a_run_that_goes_on_says_from_where(plain):
    with plain.watch as watch:
        watch.begin(CONFIG.epochs, 5, {ONE: 3, TWO: 0})
    assert plain.lines()[0] == "Continuing: 3 of 5 done, 3 epochs of the others."


def test_restarts_and_failures_have_their_lines(plain):
    with plain.watch as watch:
        watch.begin(CONFIG.epochs, 2, {ONE: 0, TWO: 0})
        watch.show(Step(ONE, 1, 16, 0.1))
        watch.show(Restarted(ONE, "signal 9"))
        watch.show(Failed(ONE, "could not write [run]/trials: No space left on device.", stop=True))
        watch.show(Failed(TWO, "trial 1 tpl1: training has diverged."))
    assert plain.lines() == [
        "trial 1 base: its process ended with signal 9; another continues.",
        "trial 1 base failed: could not write [run]/trials: No space left on device.",
        "trial 1 tpl1 failed: training has diverged.",
    ]
    assert plain.watch.done == 0


# In a terminal


def test_bars_show_time_left_epoch_and_metrics():
    clock = [100.0]
    terminal = Seen(terminal=True, clock=clock)
    with terminal.watch as watch:
        watch.begin(CONFIG.epochs, 2, {ONE: 0, TWO: 0})
        for step in range(11):
            clock[0] = 100.0 + step / 2
            watch.show(Step(ONE, 1, 22, 0.0125))
        watch.show(Epoch(ONE, row(1)))
        watch.show(Step(ONE, 2, 22, 0.125))
        watch.show(Step(TWO, 1, 22, 0.125))
        drawn = terminal.drawn().splitlines()
    (everything,) = drawn
    assert everything.startswith("0 of 2 done")
    assert "left trial 1 tpl1, epoch 1/4" in everything
    assert re.search(r"\d:\d\d:\d\d left", everything)
    assert "\x1b" in terminal.file.getvalue()


def test_the_bar_shows_the_trial_model_epoch_and_metrics_that_came_last(terminal):
    with terminal.watch as watch:
        watch.begin(CONFIG.epochs, 2, {ONE: 0, TWO: 0})
        watch.show(Epoch(ONE, row(1)))
        watch.show(Step(ONE, 2, 22, 0.125))
        assert "trial 1 base, epoch 2/4, loss 0.500, accuracy 0.750" in terminal.drawn()
        watch.show(Step(TWO, 1, 22, 0.125))
        drawn = terminal.drawn()
    assert "trial 1 tpl1, epoch 1/4" in drawn
    assert "loss" not in drawn  # of which there is none yet


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_the_time_left_is_readable_at_any_width(width):
    """Also beside the longest of names and numbers."""
    clock = [100.0]
    seen = Seen(terminal=True, width=width, clock=clock)
    long = Job(99, "tpl-aggressive")
    with seen.watch as watch:
        watch.begin(CONFIG.epochs, 100, dict.fromkeys([long, *(Job(k, "x") for k in range(99))], 0))
        for step in range(11):
            clock[0] = 100.0 + 60 * step
            watch.show(Step(long, 1, 2200, 0.01))
        watch.show(Epoch(long, row(1)))
        watch.show(Step(long, 2, 2200, 0.01))
        drawn = seen.drawn().splitlines()
    (line,) = drawn
    assert len(line) <= width
    assert re.match(r"0 of 100 done +\d+:\d\d:\d\d left", line), line


def test_a_finished_jobs_line_stays(terminal):
    with terminal.watch as watch:
        watch.begin(CONFIG.epochs, 2, {ONE: 0, TWO: 0})
        whole_unit(watch, ONE)
        assert "1 of 2 done" in terminal.drawn()
    assert "trial 1 base, 4 epochs, loss 0.125" in terminal.file.getvalue()


def test_the_bar_of_all_is_full_when_all_is_done(terminal):
    with terminal.watch as watch:
        watch.begin(CONFIG.epochs, 3, {ONE: 0, TWO: 2})
        (everything,) = (task for task in watch.bars.tasks if task.visible)
        assert everything.completed == pytest.approx(1.5)
        whole_unit(watch, ONE)
        for epoch in (3, 4):
            watch.show(Step(TWO, epoch, 44, 0.25))
            watch.show(Epoch(TWO, row(epoch)))
        watch.show(Done(TWO))
        (everything,) = (task for task in watch.bars.tasks if task.visible)
        assert everything.completed == pytest.approx(everything.total) == 3
        assert everything.description == "3 of 3 done"


# Events in any order


@pytest.mark.parametrize("seen", [True, False], ids=["terminal", "plain"])
@pytest.mark.parametrize(
    "events",
    [
        [Epoch(ONE, row(1)), Step(ONE, 2, 16, 0.1)],
        [Done(ONE)],
        [Failed(ONE, "why"), Failed(TWO, "why")],
        [Restarted(ONE, "signal 9"), Epoch(ONE, row(3)), Restarted(ONE, "signal 9")],
        [Done(ONE), Step(ONE, 1, 16, 0.1), Epoch(ONE, row(1))],
        [Step(Job(7, "other"), 9, 0, 0.0), Epoch(TWO, {"epoch": 1})],
        [Epoch(ONE, row(4)), Done(ONE), Done(ONE)],
    ],
    ids=range(7),
)
def test_events_in_an_odd_order(events, seen):
    shown = Seen(terminal=seen)
    with shown.watch as watch:
        watch.begin(CONFIG.epochs, 2, {ONE: 0, TWO: 0})
        for event in events:
            watch.show(event)
        assert re.match(r"\d of 2 done", shown.drawn().splitlines()[0])
    lines = len([event for event in events if isinstance(event, Done | Failed | Restarted)])
    lines += len([event for event in events if isinstance(event, Epoch)])
    assert seen or len(shown.lines()) == lines


def test_an_error_ends_the_bars(terminal):
    def interrupted():
        with terminal.watch as watch:
            watch.begin(CONFIG.epochs, 1, {ONE: 0})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.watch.bars.live.is_started is False
    assert "\x1b[?25h" in terminal.file.getvalue()  # the cursor is shown again
