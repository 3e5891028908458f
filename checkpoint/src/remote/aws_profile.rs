//! The files in which AWS's own tools keep credentials and settings; object_store does not read
//! them.

use std::path::PathBuf;
use std::{env, fs};

use object_store::aws::AmazonS3ConfigKey::{self, AccessKeyId, Endpoint, Region, SecretAccessKey};

/// Settings of the profile `AWS_PROFILE`, or of `default`, for those that the environment lacks.
/// Files that are not there or not readable say nothing.
pub(super) fn settings() -> Vec<(AmazonS3ConfigKey, String)> {
    let profile = env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_owned());
    let credentials = read("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    let config = read("AWS_CONFIG_FILE", "config");
    let mut settings = Vec::new();
    if !has_other_credentials() {
        settings.extend(section(&credentials, &profile).filter_map(credential));
        settings.extend(section(&config, &profile).filter_map(credential));
    }
    settings.extend(section(&config, &profile).filter_map(place));
    settings
}

/// A key pair is taken as a whole from one place: half of it from here would be of another user.
pub(super) fn has_other_credentials() -> bool {
    let variables = [
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ];
    variables.iter().any(|variable| env::var_os(variable).is_some())
}

fn credential((name, value): (&str, &str)) -> Option<(AmazonS3ConfigKey, String)> {
    let key = match name {
        "aws_access_key_id" => AccessKeyId,
        "aws_secret_access_key" => SecretAccessKey,
        "aws_session_token" => AmazonS3ConfigKey::Token,
        _ => return None,
    };
    Some((key, value.to_owned()))
}

fn place((name, value): (&str, &str)) -> Option<(AmazonS3ConfigKey, String)> {
    let key = match name {
        "region" => Region,
        "endpoint_url" => Endpoint,
        _ => return None,
    };
    Some((key, value.to_owned()))
}

fn read(variable: &str, name: &str) -> String {
    let in_home = || env::home_dir().map(|home| home.join(".aws").join(name));
    let path = env::var_os(variable).map(PathBuf::from).or_else(in_home);
    path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
}

/// The settings of a profile: `[name]`, or `[profile name]` in the configuration file.
fn section<'a>(file: &'a str, profile: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let names = [format!("[{profile}]"), format!("[profile {profile}]")];
    let is_title = |line: &&str| line.starts_with('[');
    let mut lines = file.lines().map(str::trim);
    lines.by_ref().find(|line| names.iter().any(|name| name == line));
    lines.take_while(move |line| !is_title(line)).filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        Some((name.trim(), value.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_ends_where_the_next_one_starts() {
        let file = "[default]\nregion = here\n\n[profile lab]\n# ours\nregion=there\n\
                    endpoint_url = http://a:1/?b=c\n[profile other]\nregion = elsewhere\n";
        let lab: Vec<_> = section(file, "lab").collect();
        assert_eq!(lab, [("region", "there"), ("endpoint_url", "http://a:1/?b=c")]);
        assert_eq!(section(file, "default").collect::<Vec<_>>(), [("region", "here")]);
        assert_eq!(section(file, "nobody").count(), 0);
    }
}
