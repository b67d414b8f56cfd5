// SPDX-License-Identifier: Apache-2.0
//! Limits of cgroups that are written while more is in use.

use agewise_kernel::ids::MemcgId;
use agewise_lab::machine::address_space::MapOptions;
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::machine::{Limits, Machine, MachineConfig, Policy, SwapConfig};

#[test]
fn a_limit_out_of_reach_is_tried_for_once() {
    for name in ["classic", "mglru:7.2", "mglru:6.12"] {
        let machine = |is_file: bool| {
            let mut machine = Machine::new(MachineConfig {
                policy: Policy::parse(name).unwrap(),
                swap: Some(SwapConfig::new(DeviceKind::Zram, 100)),
                ..MachineConfig::new(4096)
            });
            let group = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
            let process = machine.add_process(group);
            let vpn = machine.map(process, &MapOptions::anon(600)).unwrap();
            for page in 0..600 {
                machine.access(process, vpn + page, true);
            }
            if is_file {
                let path = "/sys/fs/cgroup/t/memory.high";
                machine.write_file(path, b"1228800").unwrap();
            } else {
                let limits = Limits {
                    high_pages: 300,
                    ..machine.limits(group)
                };
                machine.set_limits(group, limits);
            }
            assert!(machine.usage_pages(group) > 300, "{name}");
            (machine.vmstat(), machine.now_ns())
        };
        assert_eq!(machine(true), machine(false), "{name}");
    }
}
