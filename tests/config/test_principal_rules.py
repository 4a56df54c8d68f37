"""`ssl.principal.mapping.rules`: what a name in a certificate becomes, compared with Kafka's own class."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from appliance.config.principal_rules import parse_rules, principal_name
from appliance.errors import ConfigurationError
from tests.support.apache_kafka import java

NAMES: Final = (
    "CN=Duke,OU=ServiceUsers,O=Org,C=US",
    "CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US",
    "cn=kafka1,ou=SME,O=mycp",
    "OU=SME,O=mycp,C=US",
    "CN=a\\,b,O=x/y",
    "",
)
RULES: Final = (
    "DEFAULT",
    "",
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT",
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U , DEFAULT",
    r"RULE:^cn=(.*?),ou=(.*?),.*$/$1$20/,RULE:.*/x\/y/,DEFAULT",
    r"RULE:^CN=([^,]*(?:\\,[^,]*)*),O=x\/y$/[$1]/U",
    r"RULE:OU=(.*),O=(.*)/$2-$1-\$1/,,DEFAULT",
    r"RULE:.*/all/",
)
JAVA: Final = """
import java.util.*;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

public class Rules {
    public static void main(String[] arguments) throws Exception {
        Scanner in = new Scanner(System.in, "UTF-8").useDelimiter("\\u0000");
        int names = Integer.parseInt(in.next());
        List<String> told = new ArrayList<>();
        for (int i = 0; i < names; i++) told.add(in.next());
        while (in.hasNext()) {
            SslPrincipalMapper mapper = SslPrincipalMapper.fromRules(in.next());
            for (String name : told) {
                String mapped;
                try { mapped = "=" + mapper.getName(name); } catch (Exception e) { mapped = "none"; }
                System.out.print(mapped + "\\u0000");
            }
        }
    }
}
"""


def test_names_become_what_kafkas_own_mapper_makes_of_them(tmp_path: Path) -> None:
    program = tmp_path / "Rules.java"
    program.write_text(JAVA)
    asked = "\0".join([str(len(NAMES)), *NAMES, *(rules or "DEFAULT" for rules in RULES)])
    done = subprocess.run(
        [*java("-Xmx64m", "-XX:TieredStopAtLevel=1"), str(program)],
        input=asked.encode(),
        capture_output=True,
        check=True,
        timeout=300,
    )
    kafkas = done.stdout.decode().split("\0")[:-1]
    ours = []
    for rules in RULES:
        parsed = parse_rules(rules or "DEFAULT")
        for name in NAMES:
            mapped = principal_name(parsed, name)
            ours.append("none" if mapped is None else f"={mapped}")
    assert ours == kafkas


@pytest.mark.parametrize(
    "rules",
    [
        "RULE:CN=(.*)/$1",
        "RULE:(/$1/",
        "DEFAULTS",
        "RULE:a/b/L x",
        "default",
        "RULE:a/b/c/L",
        "RULE:(?=CN)(.*)/$1/",
        "RULE:(.)\\1/$1/",
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(rules: str) -> None:
    with pytest.raises(ConfigurationError, match=r"ssl\.principal\.mapping\.rules: invalid"):
        parse_rules(rules)


def test_no_name_holds_up_a_rule() -> None:
    # An engine that backtracks needs 2**1000 steps for the first of them.
    for pattern in (r"^CN=(a+)+,O=x$", r"^CN=(.*?,)*(.*?,)*(.*?,)*O=x$"):
        rules = parse_rules(f"RULE:{pattern}/$1/")
        began = time.process_time()
        assert principal_name(rules, "CN=" + "a" * 1000 + ",y" * 10_000) is None
        assert time.process_time() - began < 5
