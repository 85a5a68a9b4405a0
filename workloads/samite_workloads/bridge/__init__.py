"""What keeps run folders in step where pods share no file system: ranks to driver, driver to the API server and to storage (docs/heartbeat.md).

    ranks_side.py  rank.py  sending.py         on each rank's pod: a thread that sends what is new in the local run folder
    receiving.py  ray_link.py                  beside the driver: the collector that makes one whole run folder of it, and how it is reached over Ray
    places.py  messages.py  control_files.py   which files travel, in which words, and how requests come back
    lease.py  folder_facts.py  api_server.py   in the driver: renewal of the run's Lease with what the folder says
    mirror.py                                  in the driver: records to storage
    driver.py  arrival.py                      the driver's side as a whole, and how the attempt arrives

Called by `entrypoint` and `train.ray_*`; knows nothing of the training loop but the files it writes.
"""
