//! Three kinds of stores: their variables, the kinds of the values, and their clients.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientOptions, Result};

use super::Client;
use super::settings::{Key, Kind, Setting, TokenFile, client_kind, value};
use super::transport::Connector;

/// A builder of clients.
pub(super) trait Provider {
    type Key: Key;
    /// Environment variables with settings: their names, or how these start.
    const VARIABLES: &[&str];

    fn new(bucket: &str, client: ClientOptions, connector: Connector) -> Self;
    fn set(self, key: Self::Key, value: &str) -> Self;
    fn connect(self) -> Result<Arc<dyn Client>>;
}

/// Calls the methods that all builders have, without a trait of their own.
macro_rules! provider {
    ($builder:ty, $key:ty, $name:ident, $variables:expr) => {
        impl Provider for $builder {
            type Key = $key;
            const VARIABLES: &[&str] = &$variables;

            fn new(bucket: &str, client: ClientOptions, connector: Connector) -> Self {
                let retries = connector.options.retries();
                Self::new()
                    .$name(bucket)
                    .with_client_options(client)
                    .with_http_connector(connector)
                    .with_retry(retries)
            }

            fn set(self, key: $key, value: &str) -> Self {
                self.with_config(key, value)
            }

            fn connect(self) -> Result<Arc<dyn Client>> {
                Ok(Arc::new(self.build()?))
            }
        }
    };
}

provider!(AmazonS3Builder, AmazonS3ConfigKey, with_bucket_name, ["AWS_"]);
provider!(
    GoogleCloudStorageBuilder,
    GoogleConfigKey,
    with_bucket_name,
    ["GOOGLE_", "SERVICE_ACCOUNT"]
);
provider!(
    MicrosoftAzureBuilder,
    AzureConfigKey,
    with_container_name,
    ["AZURE_", "IDENTITY_ENDPOINT"]
);

impl Key for AmazonS3ConfigKey {
    fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::Client(key) => return client_kind(key),
            Self::Bucket => return None,
            Self::Endpoint | Self::S3Endpoint => Kind::Endpoint,
            Self::StsEndpoint | Self::MetadataEndpoint | Self::ContainerCredentialsFullUri => {
                Kind::Url
            }
            Self::WebIdentityTokenFile => Kind::File,
            Self::ContainerAuthorizationTokenFile => Kind::HeaderFile,
            Self::ContainerCredentialsRelativeUri => Kind::UrlPath,
            Self::Region | Self::DefaultRegion => Kind::Name,
            Self::AccessKeyId | Self::SecretAccessKey | Self::Token | Self::Encryption(_) => {
                Kind::Secret
            }
            _ => Kind::Text,
        })
    }

    fn token_file(settings: &[Setting<Self>]) -> Option<TokenFile> {
        let is_path = |set: &&Setting<Self>| set.key == Self::ContainerAuthorizationTokenFile;
        let path = settings.iter().rfind(is_path)?;
        Some(TokenFile {
            url: value(settings, &[Self::ContainerCredentialsFullUri])?.to_owned(),
            path: path.value.clone(),
            origin: path.origin.clone(),
        })
    }
}

impl Key for GoogleConfigKey {
    fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::Client(key) => return client_kind(key),
            Self::Bucket => return None,
            Self::BaseUrl => Kind::Endpoint,
            Self::ServiceAccount | Self::ApplicationCredentials => Kind::File,
            Self::ServiceAccountKey => Kind::Document,
            Self::BearerToken => Kind::Secret,
            _ => Kind::Text,
        })
    }
}

impl Key for AzureConfigKey {
    fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::Client(key) => return client_kind(key),
            Self::ContainerName => return None,
            Self::Endpoint | Self::AuthorityHost => Kind::Endpoint,
            Self::MsiEndpoint | Self::FabricTokenServiceUrl | Self::FabricWorkloadHost => Kind::Url,
            Self::FederatedTokenFile => Kind::File,
            Self::AccountName | Self::AuthorityId => Kind::Name,
            Self::AccessKey
            | Self::ClientSecret
            | Self::SasKey
            | Self::Token
            | Self::FabricSessionToken
            | Self::EncryptionKey => Kind::Secret,
            _ => Kind::Text,
        })
    }
}
