"""The methods, one file per paper."""

METHODS = {
    "centralized": "catchment.methods.centralized:Centralized",
    "cronus": "catchment.methods.cronus:Cronus",
    "dgc": "catchment.methods.dgc:DGC",
    "dsfl": "catchment.methods.dsfl:DSFL",
    "fedavg": "catchment.methods.fedavg:FedAvg",
    "fedcams": "catchment.methods.fedcams:FedCAMS",
    "fedcom": "catchment.methods.fedcom:FedCOM",
    "feddf": "catchment.methods.feddf:FedDF",
    "fedgem": "catchment.methods.fedgem:FedGEM",
    "fedgems": "catchment.methods.fedgem:FedGEMS",
    "fedgkt": "catchment.methods.fedgkt:FedGKT",
    "fedkgf": "catchment.methods.fedkgf:FedKGF",
    "fedmd": "catchment.methods.fedmd:FedMD",
    "fedpm": "catchment.methods.fedpm:FedPM",
    "fedprox": "catchment.methods.fedprox:FedProx",
    "fedzkt": "catchment.methods.fedzkt:FedZKT",
    "oneshot": "catchment.methods.oneshot:OneShot",
    "smartidx": "catchment.methods.smartidx:SmartIdx",
    "split": "catchment.methods.split:Split",
    "splitfed": "catchment.methods.splitfed:SplitFed",
    "standalone": "catchment.methods.standalone:Standalone",
}
"""The names that an experiment file can use, and where each method is."""
