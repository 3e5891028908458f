//! Order in which the run of a record added up.

use crate::record::Record;
use crate::sections::{MeshSizes, RankRecord};
use crate::sum_order::SumOrder;

impl SumOrder {
    /// Returns the order of a run.
    pub fn of(record: &Record) -> Self {
        Self { device: device(record), topology: topology(record), nccl: nccl(record) }
    }
}

fn device(record: &Record) -> String {
    let engine = record.run["run"]["engine"].as_str().unwrap_or("an unknown engine");
    let of_rank = |rank: &RankRecord| match (&rank.device, &rank.matmul_kernel) {
        (Some(device), _) => device.name.clone(),
        (None, Some(kernel)) => kernel.clone(),
        (None, None) => format!("matmul of {engine}"),
    };
    distinct(record.ranks.iter().map(of_rank))
}

fn topology(record: &Record) -> String {
    if record.attempts.iter().any(|attempt| attempt.world != record.ranks.len()) {
        return "other ranks in other attempts".to_owned();
    }
    let of_hosts = record.ranks.chunk_by(|left, right| left.host == right.host);
    let of_hosts: Vec<usize> = of_hosts.map(<[_]>::len).collect();
    let ranks = match of_hosts[..] {
        [first, ..] if of_hosts.iter().all(|ranks| *ranks == first) => {
            format!("{} x {first}", of_hosts.len())
        }
        _ => of_hosts.iter().map(usize::to_string).collect::<Vec<_>>().join(" + "),
    };
    let sharded = Some(record.sharded_in_effect()).filter(|state| *state != "none");
    let sharded = sharded.map_or(String::new(), |state| format!(", sharded {state}"));
    let sizes = MeshSizes::of(&record.ranks);
    let sizes =
        sizes.map_or(String::new(), |sizes| format!(", {} x {} shards", sizes.data, sizes.shard));
    format!("{ranks}{sharded}{sizes}")
}

fn nccl(record: &Record) -> Option<String> {
    let version = record.environment.cuda.as_ref()?.nccl.clone()?;
    let settings = record.environment.nccl_settings.clone();
    let transports = record.transports.as_deref().unwrap_or_default();
    let transports = distinct(transports.iter().map(|transport| transport.name.clone()));
    let parts = [Some(version), settings, Some(transports).filter(|names| !names.is_empty())];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn distinct(names: impl Iterator<Item = String>) -> String {
    names.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" + ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::finished;
    use crate::machine::Versions;
    use crate::sections::MeshPlace;
    use crate::{Attempt, Transport};

    #[test]
    fn ranks_nodes_and_sharding_are_the_topology() {
        let mut record = finished();
        assert_eq!(SumOrder::of(&record).topology, "2 x 1");
        record.ranks[1].host = "node-a".to_owned();
        record.run["parallel"] = serde_json::json!({"sharded": "weights"});
        assert_eq!(SumOrder::of(&record).topology, "1 x 2, sharded weights");
        let mut replicas = record.clone();
        replicas.run["parallel"]["shard"] = 1.into();
        assert_eq!(SumOrder::of(&replicas).topology, "1 x 2, sharded gradients", "in effect");
        for (shard, rank) in record.ranks.iter_mut().enumerate() {
            rank.mesh = Some(MeshPlace { data: 0, shard });
        }
        assert_eq!(SumOrder::of(&record).topology, "1 x 2, sharded weights, 1 x 2 shards");
        record.ranks.push(record.ranks[0].clone());
        record.ranks[2].host = "node-c".to_owned();
        let of_three = |attempt: &mut Attempt| attempt.world = 3;
        of_three(&mut record.attempts[1]);
        assert!(SumOrder::of(&record).topology.contains("other attempts"), "the first had two");
        of_three(&mut record.attempts[0]);
        assert!(SumOrder::of(&record).topology.starts_with("2 + 1, "));
    }

    #[test]
    fn devices_and_settings_of_nccl_are_named() {
        let mut record = finished();
        let on_cpu = SumOrder::of(&record);
        assert_eq!((on_cpu.device.as_str(), &on_cpu.nccl), ("avx512f", &None));
        record.ranks[1].matmul_kernel = None;
        let versions = Versions { nccl: Some("2.27.3".to_owned()), ..Versions::default() };
        record.environment.cuda = Some(versions);
        record.environment.nccl_settings = Some("NCCL_ALGO=Ring".to_owned());
        let switch = Transport {
            from: 0,
            to: None,
            name: "NVLS".to_owned(),
            channels: 0,
            send: None,
            receive: None,
        };
        record.transports = Some(vec![switch.clone(), switch]);
        let order = SumOrder::of(&record);
        assert_eq!(order.device, "avx512f + matmul of fused");
        assert_eq!(order.nccl.as_deref(), Some("2.27.3, NCCL_ALGO=Ring, NVLS"));
        let differing = order.differences(&on_cpu);
        assert_eq!(differing[0], "device avx512f + matmul of fused (golden: avx512f)");
        assert_eq!(differing[1], "NCCL 2.27.3, NCCL_ALGO=Ring, NVLS (golden: none)");
        assert_eq!(differing.len(), 2, "the topology is equal");
    }
}
