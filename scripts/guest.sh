# SPDX-License-Identifier: Apache-2.0
# Virtual machines with kernels of the distribution. Sourced by test-vm, test-guest and reference,
# which set `room`, a directory for downloads and generated files. Installs only QEMU, cpio, kmod,
# e2fsprogs, xz and zstd (and a compiler for another architecture); kernel and busybox packages are
# only unpacked. Emulates in software, since only counts matter. ARCH=aarch64 selects guests of that
# architecture.

arch=${ARCH:-$(uname -m)}
is_foreign() { [ "$arch" != "$(uname -m)" ]; }

# need_guest SKIP: checks the requirements; calls SKIP with the reason if one is
# missing.
need_guest() {
	local tools tool
	case $arch in
	x86_64)
		debian=amd64 qemu=(qemu-system-x86_64 -M pc -cpu max) console=ttyS0
		tools=qemu-system-x86_64:qemu-system-x86 ;;
	aarch64)
		# The architected pointer authentication takes most of the time when emulated.
		debian=arm64 qemu=(qemu-system-aarch64 -M virt,gic-version=3 -cpu max,pauth-impdef=on)
		console=ttyAMA0 tools=qemu-system-aarch64:qemu-system-arm ;;
	*) "$1" "no guests of $arch: x86_64 and aarch64 are known" ;;
	esac
	is_foreign && tools+=" $arch-linux-gnu-gcc:gcc-${arch/_/-}-linux-gnu"
	command -v apt-get >/dev/null || "$1" "needs Debian's packages (apt-get) for kernel and busybox"
	for tool in $tools cpio:cpio modprobe:kmod mke2fs:e2fsprogs xz:xz-utils zstd:zstd; do
		command -v "${tool%%:*}" >/dev/null && continue
		[ "$(id -u)" = 0 ] || "$1" "install ${tool##*:} first"
		apt-get install -y -qq --no-install-recommends "${tool##*:}" >/dev/null || "$1" "cannot install ${tool##*:}"
	done
	if is_foreign; then
		foreign_packages || "$1" "cannot read the lists of packages for $debian"
		foreign_programs || "$1" "install the target first: rustup target add $arch-unknown-linux-gnu"
	fi
	unpack busybox-static || "$1" "cannot download busybox-static"
}

# Packages of another architecture, with separate package lists: the system's stay
# unchanged.
foreign_packages() {
	room=$room/$arch
	mkdir -p "$room"/apt/{lists,cache/archives}/partial
	cat >"$room/apt/conf" <<-CONF
		APT::Architecture "$debian";
		APT::Architectures { "$debian"; };
		Dir::State::Lists "$room/apt/lists";
		Dir::State::status "/dev/null";
		Dir::Cache "$room/apt/cache";
	CONF
	export APT_CONFIG=$room/apt/conf
	[ -n "$(apt-cache search --names-only '^busybox-static$')" ] || apt-get update -qq 2>/dev/null
}

# Programs for another architecture, with their libraries; sets `build`, the arguments for
# cargo.
foreign_programs() {
	local triple=$arch-unknown-linux-gnu
	local name=CARGO_TARGET_${triple//-/_}
	[ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || return
	export "${name^^}_LINKER=$arch-linux-gnu-gcc" "${name^^}_RUSTFLAGS=-C target-feature=+crt-static"
	build=(--target "$triple" --features static)
}
build=()

# newest REGEX: the newest cloud kernel known to apt whose version matches.
newest() {
	apt-cache search --names-only "^linux-image-$1.*-cloud-$debian$" | awk '{print $1}' | sort -V | tail -n 1
}

# unpack PACKAGE: unpacks a package into $room/PACKAGE.
unpack() {
	[ -d "$room/$1" ] && return
	(cd "$room" && apt-get download -qq "$1" 2>/dev/null && dpkg-deb -x "$1"_*.deb "$1.new" &&
		mv "$1.new" "$1" && rm -f "$1"_*.deb)
}

# kernel PACKAGE: sets `tree`, `version` and `vmlinuz`. A directory is used as an unpacked package.
kernel() {
	tree=$room/$1
	if [ -d "$1" ]; then
		tree=$1
	else
		unpack "$1" || return
		# Newer releases package the kernel image and modules separately.
		case $1 in linux-binary-*)
			unpack "linux-modules-${1#linux-binary-}" &&
				cp -rn "$room/linux-modules-${1#linux-binary-}/." "$tree/" ;;
		esac
	fi
	[ -d "$tree/lib/modules" ] || { mkdir -p "$tree/lib" && ln -sfn ../usr/lib/modules "$tree/lib/modules"; }
	version=$(ls "$tree/lib/modules" | head -n 1)
	vmlinuz=$(find "$tree" -name 'vmlinuz*' | head -n 1)
}

# initrd JOB PROGRAM...: builds an initial file system, $initrd, with busybox, zram, ext4, the
# programs (NAME=PATH) in /bin, and standard input as /job; JOB is the command that runs it after
# mounting. More kernel modules can be named in $modules.
initrd() {
	local top=$room/initrd-$version module file name program
	initrd=$top.gz
	rm -rf "$top" && mkdir -p "$top"/{bin,modules,proc,sys,dev,cgroup,tmp,var/tmp}
	cat >"$top/job"
	cp "$room/busybox-static/bin/busybox" "$top/bin/"
	for program in "${@:2}"; do
		cp "${program#*=}" "$top/bin/${program%%=*}"
		is_foreign || ldd "${program#*=}" | grep -o '/[^ ]*' || true
	done | sort -u | while read -r file; do install -D "$file" "$top$file"; done
	depmod -b "$tree" "$version" 2>/dev/null
	touch "$top/modules/order"
	for module in lz4_compress lz4hc_compress lzo-rle zram virtio_pci virtio_blk ext4 ${modules:-}; do
		# One that is built into the kernel is not found.
		modprobe -d "$tree" -S "$version" --show-depends "$module" 2>/dev/null || true
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
		name=$(basename "$file")
		name=${name%.ko*}.ko
		case $file in *.xz) xz -dc "$file" ;; *.zst) zstd -dcq "$file" ;; *) cat "$file" ;; esac \
			>"$top/modules/$name"
		echo "$name" >>"$top/modules/order"
	done
	cat >"$top/init" <<-INIT
		#!/bin/busybox sh
		/bin/busybox --install -s /bin
		export PATH=/bin RUST_BACKTRACE=1
		mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
		mount -t cgroup2 cgroup /cgroup; mount -t debugfs debug /sys/kernel/debug; mount -t tmpfs tmp /tmp
		ip link set lo up
		for module in \$(cat /modules/order); do insmod /modules/\$module; done
		echo never >/sys/kernel/mm/transparent_hugepage/enabled
		echo +memory >/cgroup/cgroup.subtree_control
		# A module of the kernel may own DAMON from boot on.
		[ -e /sys/module/damon_stat/parameters/enabled ] && echo N >/sys/module/damon_stat/parameters/enabled
		$1
		reboot -f
	INIT
	chmod +x "$top/init"
	(cd "$top" && find . | cpio -o -H newc --quiet | gzip -1) >"$initrd"
	rm -rf "$top"
}

# boot SECONDS DISK QEMU-OPTION...: prints the output of the guest.
boot() {
	timeout "$1" "${qemu[@]}" -accel tcg,thread=multi -nodefaults -no-reboot \
		-display none -serial stdio -net none -kernel "$vmlinuz" -initrd "$initrd" \
		-drive "file=$2,format=raw,if=virtio" "${@:3}" \
		-append "console=$console panic=-1 reboot=t quiet ${append:-}" </dev/null 2>&1 | sed -u 's/\r//g'
}
