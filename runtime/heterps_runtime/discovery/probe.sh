# What this host has, in sections. It reads, and changes nothing; any POSIX shell runs it.
LC_ALL=C LANG=C LANGUAGE=C
PATH=$PATH:/usr/bin:/bin:/usr/sbin:/usr/local/nvidia/bin:/usr/lib/wsl/lib:/opt/rocm/bin
export LC_ALL LANG LANGUAGE PATH

section() { printf '\n@heterps %s\n' "$1"; }

# A driver in trouble must not hold up the rest.
asked() {
    if there timeout; then timeout 20 "$@"; else "$@"; fi 2>&1 </dev/null
    code=$?
    [ $code -eq 124 ] && echo "$1 gave no answer within 20 s"
    return $code
}

there() { command -v "$1" >/dev/null 2>&1; }

first_of() { for file in "$@"; do [ -r "$file" ] && cat "$file" 2>/dev/null && return; done; }

# The limits of a control group and of all groups above it, as they are mounted here.
limits() {
    root=$1 folder=${2%/}
    shift 2
    case $folder in *..*) folder= ;; esac
    while :; do
        for name in "$@"; do
            [ -r "$root$folder/$name" ] && echo "$name $(cat "$root$folder/$name" 2>/dev/null)"
        done
        [ -z "$folder" ] && break
        folder=${folder%/*}
    done
}

section host
uname -n
uname -s
section boot
first_of /proc/sys/kernel/random/boot_id
section memory
grep -E '^MemTotal:' /proc/meminfo 2>/dev/null
section processors
grep -E '^(processor|physical id|core id|model name)' /proc/cpuinfo 2>/dev/null | head -c 200000
section lscpu
there lscpu && lscpu -J 2>/dev/null | head -c 50000
section affinity
grep -E '^Cpus_allowed_list:' /proc/self/status 2>/dev/null
section limits
while IFS=: read -r _ controllers group; do
    case ",$controllers," in
    ,,) limits /sys/fs/cgroup "$group" memory.max cpu.max ;;
    *,memory,*) limits /sys/fs/cgroup/memory "$group" memory.limit_in_bytes ;;
    *,cpu,*)
        limits /sys/fs/cgroup/cpu "$group" cpu.cfs_quota_us cpu.cfs_period_us ;;
    esac
done 2>/dev/null </proc/self/cgroup

section interfaces
for folder in /sys/class/net/*; do
    # Bridges, tunnels, the loopback and the ends of containers' cables have no device.
    [ -e "$folder/device" ] || continue
    echo "${folder##*/} type=$(first_of "$folder/type") state=$(first_of "$folder/operstate")" \
        "speed=$(first_of "$folder/speed")"
done
section infiniband
for folder in /sys/class/infiniband/*/ports/*; do
    [ -r "$folder/rate" ] || continue
    device=${folder#/sys/class/infiniband/}
    echo "${device%%/*}|$(first_of "$folder/link_layer")|$(first_of "$folder/state")|$(first_of "$folder/rate")"
done

section visible
[ -n "${CUDA_VISIBLE_DEVICES+set}" ] && echo "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
section nvidia-devices
ls -d /dev/nvidia[0-9]* 2>/dev/null | head -n 100
if there nvidia-smi; then
    essential=index,name,memory.total
    more=uuid,pcie.link.gen.max,pcie.link.width.max,mig.mode.current
    section nvidia
    if answer=$(asked nvidia-smi --query-gpu=$essential,$more --format=csv,noheader,nounits); then
        printf '%s\n' "$answer" | head -c 100000
    else
        # Drivers refuse a whole question for one word that they do not know.
        asked nvidia-smi --query-gpu=$essential --format=csv,noheader,nounits | head -c 100000
    fi
    section nvidia-topology
    asked nvidia-smi topo -m | head -c 100000
    section nvidia-nvlink
    asked nvidia-smi nvlink --status | head -c 100000
fi
if there rocm-smi; then
    section amd
    asked rocm-smi --showproductname --showmeminfo vram --json | head -c 100000
    section amd-topology
    asked rocm-smi --showtopotype --json | head -c 100000
fi
section end
