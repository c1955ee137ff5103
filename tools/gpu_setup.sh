# Prepare this checkout on a machine without a network: build the extension in place and put the checkout on PYTHONPATH.
# Source it, so that PYTHONPATH stays set:
#
#     . tools/gpu_setup.sh [WHEELS]
#
# WHEELS (default: wheels/ of the checkout) may hold wheels of dependencies that the machine lacks; they are unpacked
# into build/site. On a machine with a network use `pip install -e '.[test]'` instead.

pycutlass_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || return 1
pycutlass_wheels=${1:-$pycutlass_root/wheels}
pycutlass_site=$pycutlass_root/build/site

if compgen -G "$pycutlass_wheels/*.whl" > /dev/null; then
  python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$pycutlass_site" \
    "$pycutlass_wheels"/*.whl || return 1
fi
export PYTHONPATH="$pycutlass_root:$pycutlass_site${PYTHONPATH:+:$PYTHONPATH}"
(cd "$pycutlass_root" && PYCUTLASS_JOBS=$(nproc) python3 setup.py --quiet build_ext --inplace) || return 1
# pip would write bytecode; without it every process compiles what it imports, even to find a kernel in the cache.
python3 -m compileall -q -j 0 "$pycutlass_root/pycutlass" || return 1
if [ -d "$pycutlass_site" ]; then python3 -m compileall -qq -j 0 "$pycutlass_site"; fi
python3 -c 'import pycutlass; print("pycutlass", pycutlass.__version__, "from", pycutlass.__file__)' || return 1
