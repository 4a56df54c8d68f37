#!/bin/bash
# Runs in a fresh Debian system where apt has installed /packages/one.deb. It serves as the unit says, upgrades to
# /packages/two.deb under traffic, removes, installs again, and purges. The client is kcat of Debian.
set -euxo pipefail
unit=/lib/systemd/system/appliance.service
data=/var/lib/appliance
broker=127.0.0.1:9092
ip link set lo up

# As systemd would: ExecStart of the unit, as its user, with its mask and limits, and the directory that it makes.
setting() { sed -n "s/^$1=//p" "$unit"; }
serve() {
    install -d -o "$(setting User)" -g "$(setting Group)" -m "$(setting StateDirectoryMode)" "$data"
    : > /tmp/serve.log
    local words
    words=$(setting ExecStart)
    words=${words//'${STATE_DIRECTORY}'/$data}
    (
        umask "$(setting UMask)"
        ulimit -n "$(setting LimitNOFILE)" || ulimit -n "$(ulimit -Hn)"
        # shellcheck disable=SC2086 # words of a unit have no spaces in them
        exec setpriv --reuid "$(setting User)" --regid "$(setting Group)" --init-groups --no-new-privs \
            --inh-caps=-all env -i "STATE_DIRECTORY=$data" PATH="$PATH" LANG=C.UTF-8 $words >> /tmp/serve.log 2>&1
    ) &
    pid=$!
    for _ in $(seq 300); do
        if grep -q "ready on" /tmp/serve.log; then return; fi
        if ! kill -0 $pid; then break; fi
        sleep 0.1
    done
    cat /tmp/serve.log
    exit 1
}
stop() {
    kill $pid
    wait $pid
}
produce() { echo "$1" | kcat -b $broker -P -t orders -X acks=all; }
consumed() { kcat -b $broker -C -t orders -o beginning -e -q | paste -sd ' '; }

# 1. Installed.
test "$(stat -c '%a %U %G' /etc/appliance/appliance.toml)" = "640 root appliance"
test "$(getent passwd appliance | cut -d: -f7)" = /usr/sbin/nologin
appliance --version | grep "compiled build"
test -n "$(find /usr/lib/log-appliance -name '*.pyc' -print -quit)"
test "$(systemctl is-enabled appliance.service)" = enabled
test "$(systemctl is-enabled appliance.socket || true)" = disabled
systemd-analyze verify "$unit"
grep "^Slice=appliance.slice$" "$unit"
systemd-analyze verify "${unit%.service}.slice"
journalctl --list-catalog | grep "The appliance cannot start" # dpkg's trigger of systemd has read it

# 2. Pages and completions are there, can be read, and say what this version says.
for page in appliance appliance-serve appliance-topics-create appliance.toml; do man -w "$page"; done
LC_ALL=C.UTF-8 man --warnings=w appliance-serve 2> /tmp/warnings | grep -e --ephemeral
man --warnings=w appliance.toml 2>> /tmp/warnings | grep durability
test ! -s /tmp/warnings
for shell in bash zsh fish; do appliance completion $shell > /tmp/completion.$shell; done
cmp /tmp/completion.bash /usr/share/bash-completion/completions/appliance
cmp /tmp/completion.zsh /usr/share/zsh/vendor-completions/_appliance
cmp /tmp/completion.fish /usr/share/fish/vendor_completions.d/appliance.fish
bash -ec '. /usr/share/bash-completion/completions/appliance && complete -p appliance'
zsh -fc 'autoload -Uz compinit && compinit -u -D && echo $_comps[appliance]' | grep _appliance
fish -c 'complete -C "appliance to"' | grep topics

# 3. Serves a client.
serve
produce one
test "$(consumed)" = one
appliance topics describe orders -b $broker | grep orders
stop
test "$(stat -c '%a %U' $data)" = "700 appliance"

# 4. An upgrade keeps records and what the administrator has changed. The broker that runs goes on until it is stopped.
sed -i 's/^#durability = .*/durability = "fsync"/' /etc/appliance/appliance.toml
cp /etc/appliance/appliance.toml /tmp/changed.toml
serve
produce two
apt-get install -y /packages/two.deb
test "$(dpkg-query -W -f '${Version}' log-appliance)" = "$(dpkg-deb -f /packages/two.deb Version)"
produce three
stop
cmp /tmp/changed.toml /etc/appliance/appliance.toml
test "$(stat -c '%a %U %G' /etc/appliance/appliance.toml)" = "640 root appliance"
serve
test "$(consumed)" = "one two three"
stop

# 5. A removal keeps records and options.
apt-get remove -y log-appliance
test ! -e /usr/lib/log-appliance
test ! -e /usr/bin/appliance
test -e $data/slot-0/orders-0/00000000000000000000.log
cmp /tmp/changed.toml /etc/appliance/appliance.toml

# 6. Installed again, it goes on with them.
apt-get install -y /packages/two.deb
serve
produce four
test "$(consumed)" = "one two three four"
stop

# 7. A purge leaves nothing.
apt-get purge -y log-appliance
test ! -e $data
test ! -e /etc/appliance
left=$(find /usr /etc /var /lib -xdev -name '*appliance*' -not -path '/var/cache/man/*')
test -z "$left"
echo the life is over
