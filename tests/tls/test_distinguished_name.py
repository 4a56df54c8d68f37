"""The name in a certificate is the text that Java makes of it, for any name that a client may choose."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from appliance.errors import ClientFault
from appliance.tls.distinguished_name import subject_of
from tests.support.apache_kafka import java
from tests.support.pki import Authority

SUBJECTS: Final = (
    "/C=DE/ST=Berlin/L=Mitte/O=example/OU=logs/CN=ann",
    "/DC=org/DC=example/UID=7/street=Main Street 1/CN=bob",
    "/O=a, b/CN=eve,O=admin",
    '/CN=\\ "x" <y>;#z+q=\\\\w\\ ',
    "/CN=#sharp/O= lead",
    "/CN=ann+UID=9/O=several",
    "/emailAddress=ann@example.org/title=Dr/CN=mail",
    "/CN=Jürgen Müßig/O=Örtlich 漢字",
)
JAVA: Final = """
import java.io.*;
import java.nio.file.*;
import java.security.cert.*;

public class Names {
    public static void main(String[] paths) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        for (String path : paths) {
            InputStream in = Files.newInputStream(Path.of(path));
            X509Certificate read = (X509Certificate) CertificateFactory.getInstance("X.509").generateCertificate(in);
            out.print(read.getSubjectX500Principal().getName() + "\\u0000");
        }
    }
}
"""


def test_names_read_as_java_writes_them(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    issued = [authority.issue(f"n{number}", subject) for number, subject in enumerate(SUBJECTS)]
    program = tmp_path / "Names.java"
    program.write_text(JAVA)
    done = subprocess.run(
        [
            *java("-Xmx64m", "-XX:TieredStopAtLevel=1"),
            str(program),
            *(str(each.certificate) for each in issued),
        ],
        capture_output=True,
        check=True,
        timeout=300,
    )
    javas = done.stdout.decode().split("\0")[:-1]
    assert [subject_of(each.der()) for each in issued] == javas
    assert javas[0] == "CN=ann,OU=logs,O=example,L=Mitte,ST=Berlin,C=DE"
    assert javas[2] == "CN=eve\\,O\\=admin,O=a\\, b", "a name cannot pretend to have further parts"


def test_a_certificate_that_is_cut_off_or_changed_is_refused_or_read_and_never_more(tmp_path: Path) -> None:
    whole = Authority(tmp_path / "pki").issue("ann", SUBJECTS[0]).der()
    for end in range(0, len(whole), 3):
        with pytest.raises(ClientFault):
            subject_of(whole[:end])
    refused = 0
    for position in range(min(len(whole), 300)):
        changed = bytearray(whole)
        changed[position] ^= 0xFF
        try:
            subject_of(bytes(changed))
        except ClientFault:
            refused += 1
    assert refused > 20
