//! The names of NICs: lines of the connections have only their numbers.

use std::collections::BTreeMap;

/// Names by network and number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NicNames {
    names: BTreeMap<(String, u32), String>,
}

impl NicNames {
    /// Reads what follows `NCCL INFO ` in a line, if it is about NICs:
    ///
    /// ```text
    /// NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
    /// NET/IB : Using [0]mlx5_0:1/IB [1]={[1] mlx5_1:1/IB, [2] mlx5_2:1/IB} ; OOB eth0:10.0.0.1<0>
    /// NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2
    /// NET/Socket : Using [0]eth0:10.0.0.1<0>
    /// ```
    pub(super) fn add(&mut self, message: &str) {
        let Some((network, text)) = message.split_once(" : ") else { return };
        if !super::is_network(network) {
            return;
        }
        if let Some(list) = text.strip_prefix("Using ") {
            let list = list.split(';').next().unwrap_or_default();
            self.add_list(network, list);
        } else if let Some(device) = text.strip_prefix("Made virtual device ") {
            let Some((number, rest)) = numbered(device) else { return };
            let name = rest.trim_start().strip_prefix("name=").and_then(first_word);
            self.add_name(network, number, name);
        }
    }

    fn add_list(&mut self, network: &str, list: &str) {
        // A merged NIC lists its parts in braces, each with a number of its own.
        let mut rest = list.trim_start();
        while let Some((number, text)) = numbered(rest) {
            let end = match text.strip_prefix("={") {
                Some(_) => text.find('}').map_or(text.len(), |end| end + 1),
                None => text.find(' ').unwrap_or(text.len()),
            };
            let (name, after) = text.split_at(end);
            self.add_name(network, number, Some(name));
            rest = after.trim_start();
        }
    }

    fn add_name(&mut self, network: &str, number: u32, text: Option<&str>) {
        let name = text.map(|text| short_name(network, text)).filter(|name| !name.is_empty());
        if let Some(name) = name {
            self.names.insert((network.to_owned(), number), name);
        }
    }

    /// The name of a NIC, or its number where the log does not name it.
    pub(super) fn name(&self, network: &str, number: u32) -> String {
        // A switch that sums is reached by the same NICs, of which only InfiniBand has any.
        let network = if network.starts_with("COLLNET/") { "NET/IB" } else { network };
        let name = self.names.get(&(network.to_owned(), number));
        name.cloned().unwrap_or_else(|| number.to_string())
    }
}

/// `[3]` and what follows it.
fn numbered(text: &str) -> Option<(u32, &str)> {
    let (number, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some((number.parse().ok()?, rest))
}

fn first_word(text: &str) -> Option<&str> {
    text.split_whitespace().next()
}

/// `mlx5_0:1` of `mlx5_0:1/IB`, `mlx5_0:1+mlx5_1:1` of a merged one, `eth0` of `eth0:10.0.0.1<0>`.
fn short_name(network: &str, text: &str) -> String {
    if let Some(parts) = text.strip_prefix("={") {
        let parts = parts.trim_end_matches('}').split(", ");
        let names = parts.map(|part| numbered(part).map_or(part, |(_, name)| name).trim());
        return names.map(|name| short_name(network, name)).collect::<Vec<_>>().join("+");
    }
    let end = if network == "NET/Socket" { ':' } else { '/' };
    text.split(end).next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(messages: &[&str]) -> NicNames {
        let mut names = NicNames::default();
        messages.iter().for_each(|message| names.add(message));
        names
    }

    #[test]
    fn nics_are_named_by_network_and_number() {
        let names = names(&[
            "NET/IB : Using [0]mlx5_0:1/IB [3]mlx5_3:2/RoCE [RO]; OOB eth0:10.0.0.1<0>",
            "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.0.1.1<0>",
            "NET/IB : Made virtual device [4] name=mlx5_0+mlx5_1 speed=400000 ndevs=2 rail=0",
        ]);
        let found = |network, number| names.name(network, number);
        assert_eq!([found("NET/IB", 0), found("NET/IB", 3)], ["mlx5_0:1", "mlx5_3:2"]);
        assert_eq!([found("NET/Socket", 0), found("NET/Socket", 1)], ["eth0", "eth1"]);
        assert_eq!(found("NET/IB", 4), "mlx5_0+mlx5_1");
        assert_eq!([found("NET/IB", 7), found("NET/AWS Libfabric", 0)], ["7", "0"]);
    }

    #[test]
    fn merged_nics_have_the_names_of_their_parts() {
        let list = "NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [2]mlx5_2:1/IB ; OOB e:1";
        let names = names(&[list]);
        assert_eq!(names.name("NET/IB", 0), "mlx5_0:1+mlx5_1:1");
        assert_eq!([names.name("NET/IB", 1), names.name("NET/IB", 2)], ["1", "mlx5_2:1"]);
    }

    #[test]
    fn other_and_damaged_lines_name_nothing() {
        let damaged =
            ["NET/IB : No device found.", "NET/IB : Using ", "NET/IB : Using [0", "a : b"];
        let damaged = names(&damaged);
        assert_eq!(damaged, NicNames::default());
        let made = "NET/IB : Made virtual device [1] nam";
        assert_eq!(names(&[made, "NET/IB : Using [1]/IB"]), NicNames::default());
    }
}
