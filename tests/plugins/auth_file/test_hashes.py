"""Hashes of passwords: ours, and those that other programs wrote (the word is always ``sesame``)."""

import pytest

from tidegate_auth_file._hashes import MEMORY_KIB, make_hash, parse_hash

WRITTEN = {
    # openssl passwd -apr1, -1, -5, -6 -salt tidegate
    "apr-md5-crypt": "$apr1$tidegate$XAlUUm0FHfELORTSKY3rX.",
    "md5-crypt": "$1$tidegate$i0rQ9b8itSNui7HrjC64u/",
    "sha256-crypt": "$5$tidegate$FczoTlFJ5jCbyqDFAt9y47DpLj9btCAPnTptwwZRJY7",
    "sha512-crypt": "$6$tidegate$XnuyDgTjepUhvS5GEqViTHxMdfCu/DPPjyQ2NDzw8oVibbGub22B7kGCyVuhZkj9"
    "kLiwLgPnV8RpySAnKefoN.",
    # mosquitto_passwd, and mosquitto_passwd -H sha512
    "PBKDF2": "$7$101$m7DC4zSdmyqIUpNC$lAIStPVPVJMlXXVvhWtocmvykcvX+Am888E1Zgv2vyPR9Hva4LkB8MTR841v"
    "cBzkorKjwy5AK/F0FbSP4n4eAQ==",
    "SHA-512": "$6$lbnvOT0lE+Qmj/Ci$nV6CUM4ymZmiuJ+tbumSxJ4/fJdoGxxWIWlfGcpKoLb3Y31dc8s0KnnkaQqEYMK"
    "JSKyu1IM6fiftLXMysWOvVQ==",
    "SHA-1": "{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw=",
    "bcrypt": "$2b$04$KokTzAzuU985YtMGPForm.XvDgsOZpVKMClUwDYhf6Jhn2dJd7uOC",
    "argon2id": "$argon2id$v=19$m=64,t=1,p=1$143omuSyBsOKIGfUW08juw$CEP7uV19nEQC6p1hGPyActJd0llNUmUo"
    "pi1UIxRAKdo",
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_other_programs_wrote_is_read_and_checks_the_password(kind):
    found = parse_hash(WRITTEN[kind])
    assert found.kind == kind
    assert found.written() == WRITTEN[kind]
    assert found.matches("sesame")
    for wrong in ("Sesame", "sesame ", "", "sesame\0", "\0", "x" * 4096):
        assert not found.matches(wrong)
    assert not found.is_ours
    assert found.memory_bytes < 1 << 20


def test_bcrypt_of_apache_is_the_same_under_another_letter():
    assert parse_hash(WRITTEN["bcrypt"].replace("$2b$", "$2y$")).matches("sesame")


def test_ours_is_argon2id_with_a_salt_of_its_own():
    one, two = make_hash("sesame"), make_hash("sesame")
    assert one.written().startswith(f"$argon2id$v=19$m={MEMORY_KIB},t=2,p=1$")
    assert one.written() != two.written()
    assert one.is_ours
    assert one.memory_bytes == MEMORY_KIB << 10
    assert parse_hash(one.written()).matches("sesame")
    assert not one.matches("Sesame")


def test_an_empty_password_is_none():
    with pytest.raises(ValueError, match="empty"):
        make_hash("")


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_hash_with_a_piece_missing_is_refused_or_fits_nothing(kind):
    text = WRITTEN[kind]
    for end in range(1, len(text)):
        try:
            found = parse_hash(text[:end])
        except ValueError:
            continue
        assert not found.matches("sesame")


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_is_wrong_with_a_hash_is_told_without_it(kind):
    text = WRITTEN[kind][:-2] + "!!"
    with pytest.raises(ValueError, match=r"^has ") as caught:
        parse_hash(text)
    assert text[-12:-2] not in str(caught.value)
