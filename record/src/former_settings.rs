//! Settings of earlier versions, read as those of today.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

/// Reads the sections of a record's settings.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let mut sections = Value::deserialize(deserializer)?;
    if let Some(sections) = sections.as_object_mut() {
        rename_shard_optimizer(sections);
    }
    Ok(sections)
}

/// Replaces `run.shard_optimizer` by `[parallel]`, with what versions without this section did.
fn rename_shard_optimizer(sections: &mut Map<String, Value>) {
    let run = sections.get_mut("run").and_then(Value::as_object_mut);
    let Some(former) = run.and_then(|run| run.remove("shard_optimizer")) else { return };
    let sharded = if former == true { "optimizer" } else { "none" };
    let parallel = json!({
        "data": 1,
        "shard": 0,
        "sharded": sharded,
        "gather_ahead": 1,
        "reshard": true,
    });
    sections.entry("parallel").or_insert(parallel);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Record;
    use crate::fixtures::finished;

    #[test]
    fn a_sharded_optimizer_of_an_earlier_version_is_one_of_today() {
        let read = |shard_optimizer: bool| {
            let mut record = finished();
            record.run["run"] = json!({ "engine": "fused", "shard_optimizer": shard_optimizer });
            record.run.as_object_mut().unwrap().remove("parallel");
            let bytes = serde_json::to_vec(&record.sealed()).unwrap();
            Record::parse(Path::new("record.json"), &bytes).unwrap()
        };
        for (shard_optimizer, sharded) in [(true, "optimizer"), (false, "none")] {
            let record = read(shard_optimizer);
            assert_eq!(record.run["run"], json!({ "engine": "fused" }));
            assert_eq!(record.run["parallel"]["sharded"], sharded);
            assert_eq!(record.run["parallel"]["data"], 1);
        }
    }
}
