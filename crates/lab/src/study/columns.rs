// SPDX-License-Identifier: Apache-2.0
//! The columns of a run: policies, alone and with agents that reclaim beside them.

use agewise_policy::proactive::Spec;

use super::error::StudyError;
use super::setup::parse_contender;
use crate::experiment::contender::Contender;
use crate::yardstick;

/// A policy, and the agent beside it.
pub type Column = (Contender, Option<Spec>);

/// Every policy without an agent and, unless it is a yardstick, with each agent.
///
/// # Errors
/// Fails for unknown policies, and for one that is given twice.
pub fn columns(policies: &[impl AsRef<str>], agents: &[Spec]) -> Result<Vec<Column>, StudyError> {
    with_agents(contenders(policies)?, agents)
}

/// The policies of these names.
///
/// # Errors
/// Fails for unknown ones.
pub fn contenders(policies: &[impl AsRef<str>]) -> Result<Vec<Contender>, StudyError> {
    let names = yardstick::with_parameters(policies);
    let policies = names.iter().map(|name| parse_contender(name.trim()));
    policies.collect()
}

/// Like [`columns`], of policies that need not have names.
///
/// # Errors
/// Fails for a policy that is given twice, and for agents without a policy of the machine.
pub fn with_agents(policies: Vec<Contender>, agents: &[Spec]) -> Result<Vec<Column>, StudyError> {
    let is_kernel = |policy: &Contender| matches!(policy, Contender::Kernel(_));
    if let Some(agent) = agents.first()
        && !policies.is_empty()
        && !policies.iter().any(is_kernel)
    {
        return Err(StudyError::Argument(format!(
            "the agent {agent} reclaims beside a policy of the machine, and all given are \
             yardsticks: name one, such as classic"
        )));
    }
    let mut columns: Vec<Column> = Vec::new();
    for policy in policies {
        let is_it = |(of, _): &Column| (of.name(), of.sha256()) == (policy.name(), policy.sha256());
        if columns.iter().any(is_it) {
            return Err(StudyError::Argument(format!(
                "the policy {} is given twice: its columns would be the same",
                policy.name()
            )));
        }
        let agents = match policy {
            Contender::Kernel(_) => agents,
            Contender::Yardstick(_) => &[],
        };
        let beside = agents
            .iter()
            .map(|agent| (policy.clone(), Some(agent.clone())));
        let beside: Vec<_> = beside.collect();
        columns.push((policy, None));
        columns.extend(beside);
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_compared_once() {
        let error = columns(&["classic", "opt", "classic"], &[]).unwrap_err();
        assert!(
            error.to_string().contains("classic is given twice"),
            "{error}"
        );
        let agents = ["cost".parse().unwrap()];
        assert_eq!(columns(&["classic", "arc"], &agents).unwrap().len(), 3);
        let error = columns(&["arc", "opt"], &agents).unwrap_err().to_string();
        assert!(error.contains("the agent cost reclaims beside"), "{error}");
        // Another name of the same machine, or the same name with other parameters.
        assert!(columns(&["reuse:look=0.25", "reuse:look=0.5"], &[]).is_ok());
    }
}
