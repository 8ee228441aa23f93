from benchmarks.fidelity.own_plain import steadiest


def test_the_attempt_with_the_steadiest_profile_is_kept_whatever_its_error() -> None:
    attempts = [{"drift": -0.06, "error": 0.01}, {"drift": 0.05, "error": 0.2}]
    assert steadiest(attempts) == attempts[1]
