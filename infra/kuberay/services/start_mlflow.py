"""Start MLflow's server with the database's password, which AWS keeps and changes by itself.

DATABASE is a URI without a password. DATABASE_SECRET names the secret of RDS; without it the URI is
taken as it is. The password reaches the server by a variable, never by an argument.
"""

import json
import os
import sys
from urllib.parse import quote

import botocore.session


def read_password(secret: str) -> str:
    region = secret.split(":")[3]  # of its ARN
    client = botocore.session.get_session().create_client("secretsmanager", region_name=region)
    return json.loads(client.get_secret_value(SecretId=secret)["SecretString"])["password"]


def main() -> None:
    uri = os.environ["DATABASE"]
    if secret := os.environ.get("DATABASE_SECRET"):
        uri = uri.replace("@", f":{quote(read_password(secret), safe='')}@", 1)
    variables = {**os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    os.execvpe("mlflow", ["mlflow", "server", *sys.argv[1:]], variables)


if __name__ == "__main__":
    main()
