from tests.reference import DOCUMENT, VARIABLES, reference, used_in_source


def test_the_page_is_what_the_commands_say() -> None:
    assert DOCUMENT.read_text() == reference(), "run: make docs"


def test_every_variable_is_on_the_page() -> None:
    on_the_page = {name for variables in VARIABLES.values() for name in variables if name.startswith("CODEDREDUCE_")}
    assert on_the_page == used_in_source()
