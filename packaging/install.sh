#!/bin/sh
# Installs swarmd from its wheel into an environment of its own.
#
#   sh install.sh [--wheel FILE] [--sums FILE] [--prefix DIR] [--bin DIR] [--torch cpu|default] [--yes]
#
# `make dist` writes wheel, SHA256SUMS and this script into dist. Nothing is asked of a pipe: `... | sh -s -- --yes`.
# Run again with another wheel it upgrades. Everything is in functions, so that half of a script does nothing.
set -eu

TORCH_INDEX=https://download.pytorch.org/whl/cpu

say() { printf '%s\n' "$*"; }

fail() {
  printf 'install.sh: %s\n' "$1" >&2
  printf '  fix: %s\n' "$2" >&2
  exit 1
}

usage() {
  say "usage: sh install.sh [--wheel FILE] [--sums FILE] [--prefix DIR] [--bin DIR] [--torch cpu|default] [--yes]

  --wheel FILE   the wheel; else the only swarmd-*.whl of this directory
  --sums FILE    its SHA-256; else the SHA256SUMS beside the wheel
  --prefix DIR   where the environment is made; else /opt/swarmd as root, ~/.local/share/swarmd otherwise
  --bin DIR      where the command is linked; else /usr/local/bin as root, ~/.local/bin otherwise, nowhere with --prefix
  --torch WHICH  the build of torch; else the CPU's where there is no accelerator
  --yes          do it without asking

PYTHON names the Python to use."
}

read_options() {
  wheel='' sums='' prefix='' bin='' torch='' yes=''
  while [ $# -gt 0 ]; do
    case $1 in
      --yes) yes=1 ;;
      --help | -h) usage && exit 0 ;;
      --wheel | --sums | --prefix | --bin | --torch)
        [ $# -ge 2 ] || fail "$1 needs a value" "sh install.sh --help"
        case $1 in
          --wheel) wheel=$2 ;;
          --sums) sums=$2 ;;
          --prefix) prefix=$2 ;;
          --bin) bin=$2 ;;
          --torch) torch=$2 ;;
        esac
        shift
        ;;
      *) fail "no option is called $1" "sh install.sh --help" ;;
    esac
    shift
  done
  case $torch in '' | cpu | default) ;; *) fail "--torch is cpu or default, not $torch" "leave it away" ;; esac
}

choose_places() {
  if [ "$(id -u)" = 0 ]; then
    default_prefix=/opt/swarmd default_bin=/usr/local/bin
  else
    default_prefix=${HOME:-}/.local/share/swarmd default_bin=${HOME:-}/.local/bin
  fi
  if [ -z "$prefix" ]; then
    [ "$(id -u)" = 0 ] || [ -n "${HOME:-}" ] || fail "HOME is not set" "give a directory with --prefix"
    prefix=$default_prefix
    [ -n "$bin" ] || bin=$default_bin
  fi
  case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
  upgrades=''
  if [ -x "$prefix/bin/swarmd" ]; then
    upgrades=1
  elif [ -d "$prefix" ] && [ ! -f "$prefix/pyvenv.cfg" ] && [ -n "$(ls -A "$prefix")" ]; then
    fail "$prefix has something else in it" "give another directory with --prefix"
  fi
  if [ -n "$bin" ] && [ -e "$bin/swarmd" ] && [ "$(readlink "$bin/swarmd")" != "$prefix/bin/swarmd" ]; then
    fail "$bin/swarmd is there and is not a link to $prefix/bin/swarmd" "remove it, or give another directory with --bin"
  fi
}

find_wheel() {
  if [ -z "$wheel" ]; then
    # shellcheck disable=SC2144 # several matches are the second case
    set -- swarmd-*.whl
    [ -f "$1" ] || fail "there is no swarmd-*.whl in $PWD" \
      "build one with \`make dist\` in a checkout, or give the one that you were given with --wheel"
    [ $# = 1 ] || fail "there are several: $*" "give one with --wheel"
    wheel=$1
  fi
  [ -f "$wheel" ] || fail "there is no file $wheel" "build it with \`make dist\` in a checkout"
  [ -n "$sums" ] || sums=$(dirname "$wheel")/SHA256SUMS
  [ -f "$sums" ] || fail "there is no $sums" \
    "take SHA256SUMS from where the wheel comes from, and give it with --sums"
}

find_python() {
  python='' seen=''
  for each in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    command -v "$each" >/dev/null 2>&1 || continue
    seen="$seen $each"
    if "$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python=$(command -v "$each")
      break
    fi
  done
  [ -n "$python" ] || fail "swarmd needs Python 3.11 or newer; found:${seen:- none}" \
    "install one, and call this again with PYTHON=/path/to/python3.11"
  "$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python cannot make environments" \
    "install its venv (Debian, Ubuntu: apt install python3-venv)"
}

check_hash() {
  wanted=$(awk -v name="$(basename "$wheel")" '{ sub(/^\*/, "", $2) } $2 == name { print $1 }' "$sums")
  [ -n "$wanted" ] || fail "$sums does not name $(basename "$wheel")" "take the SHA256SUMS of this very wheel"
  found=$("$python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$wheel")
  [ "$wanted" = "$found" ] || fail "$wheel is not what $sums says: its SHA-256 is $found" \
    "fetch it again; if it stays so, do not install it"
}

# The rule of packaging/environment.py: a device that the kernel knows of, and on systems but Linux the only build.
choose_torch() {
  why="asked for by --torch"
  [ -z "$torch" ] || return 0
  torch='default' why="there is an accelerator; --torch cpu takes the small build"
  if [ "$(uname -s)" != Linux ]; then
    why="the only one for this system"
  elif [ -e /dev/nvidiactl ] || [ -e /proc/driver/nvidia/version ]; then
    :
  elif [ -e /dev/dxg ] && [ -e /usr/lib/wsl/lib/libcuda.so.1 ]; then
    :
  elif [ -e /dev/kfd ]; then
    why="there is an AMD device; for ROCm set PIP_INDEX_URL to PyTorch's index for it"
  else
    torch=cpu why="no accelerator was found; --torch default takes the build for CUDA, 4 GB more"
  fi
}

explain() {
  size='about 2 GB'
  [ "$torch" = cpu ] || [ "$(uname -s)" != Linux ] || size='about 6 GB'
  say "This will"
  say "  - $([ -n "$upgrades" ] && echo upgrade || echo make) the environment $prefix with $python"
  say "  - install $wheel there (its SHA-256 is right), with the versions it was tested with: $size, from pip's index"
  say "  - take torch's $torch build: $why"
  [ -z "$bin" ] || say "  - link $bin/swarmd to it"
  say "Nothing else is changed; to be rid of it remove these."
}

ask() {
  [ -z "$yes" ] || return 0
  [ -t 0 ] || fail "nothing was done: there is no terminal to ask" "add --yes (behind a pipe: sh -s -- --yes)"
  printf 'Go on? [y/N] '
  read -r answer
  case $answer in y | Y | yes) ;; *) say "nothing was done" && exit 1 ;; esac
}

pip() {
  "$prefix/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}

install_torch() {
  version=$(sed -n 's/^torch==//p' "$work/constraints.txt")
  [ -n "$version" ] || return 0
  if [ "$torch" = cpu ]; then
    pip install --no-deps "torch==$version+cpu" && return 0
    say "torch's CPU build is not where pip is set to look: asking $TORCH_INDEX"
    pip --timeout 10 --retries 1 install --no-deps --index-url "$TORCH_INDEX" "torch==$version+cpu" && return 0
    say "$TORCH_INDEX does not answer: taking the build for CUDA"
  fi
  pip install -c "$work/constraints.txt" "torch==$version"
}

# What is locked needs no resolving; what this system needs besides, the wheel itself brings in.
install_packages() {
  "$python" -c 'import sys, zipfile; sys.stdout.write(zipfile.ZipFile(sys.argv[1]).read("swarmd/constraints.txt").decode())' \
    "$wheel" >"$work/constraints.txt" || fail "$wheel holds no swarmd/constraints.txt" "build it with \`make dist\`"
  sed -n '/^# running/,/^# bootstrap/p' "$work/constraints.txt" | grep -v '^torch==' >"$work/running.txt"
  if ! { install_torch && pip install --no-deps -r "$work/running.txt" &&
    pip install -c "$work/constraints.txt" "$wheel" && pip install --no-deps --force-reinstall "$wheel"; }; then
    fail "pip could not install the packages: see above" \
      "check the network and \`$prefix/bin/pip config list\`, then run this again"
  fi
}

main() {
  read_options "$@"
  choose_places
  find_wheel
  find_python
  check_hash
  choose_torch
  explain
  ask
  umask 022
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  [ -x "$prefix/bin/python" ] || "$python" -m venv "$prefix" ||
    fail "$prefix could not be made" "see above; without root give a directory of yours with --prefix"
  install_packages
  command=$prefix/bin/swarmd
  if [ -n "$bin" ]; then
    mkdir -p "$bin"
    ln -sf "$command" "$bin/swarmd"
    case :$PATH: in *":$bin:"*) command=swarmd ;; *) command=$bin/swarmd ;; esac
  fi
  say
  say "$("$prefix/bin/swarmd" --version) is installed in $prefix. Next:"
  say "  $command init                                   # a node; asks what it is to be"
  say "  $command join swarm.toml --dir mine --name bob  # a node in a swarm whose manifest you have"
}

main "$@"
