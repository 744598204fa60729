"""tmp"""
from rungwise.config import Config
class ReportConfig(Config):
    pass
def run(config, inputs, output, context):
    output.write_bytes("report.html", b"x")
    return {"headline":"x","show":["report.html"],"page":"report.html"}
