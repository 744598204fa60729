# What every test begins with; terraform test reads this file by itself.
name           = "research"
region         = "us-east-1"
package_path   = "./tests/package.tar.gz"
package_sha256 = "cf24fdb62a4c2bfc0653e918762965caa74386e0f8cb212d8e74f97f7a38339e"
