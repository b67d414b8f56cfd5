// SPDX-License-Identifier: Apache-2.0
//! The `agewise` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    agewise::main()
}
