# Each rule on worker groups has a case here that it refuses. What else the case holds is valid.

mock_provider "aws" {
  source = "./tests/mocks"
}

run "no_worker_group" {
  command = plan
  variables {
    worker_groups = {}
  }
  expect_failures = [var.worker_groups]
}

run "a_group_named_head" {
  command = plan
  variables {
    worker_groups = { head = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_group_name_with_an_underscore" {
  command = plan
  variables {
    worker_groups = { cpu_big = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_group_without_a_type" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = [], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_group_with_a_type_twice" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge", "c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_type_without_a_size" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_group_image_by_name" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-latest", maximum = 4, cpus = 8 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_minimum_above_the_maximum" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, minimum = 5 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_negative_minimum" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, minimum = -1 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_maximum_of_none" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 0, cpus = 8 } }
  }
  expect_failures = [var.worker_groups]
}

run "half_a_machine" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 1.5, cpus = 8 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_machine_without_a_cpu" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 0 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_negative_number_of_gpus" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, gpus = -1 } }
  }
  expect_failures = [var.worker_groups]
}

run "half_a_gpu" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, gpus = 0.5 } }
  }
  expect_failures = [var.worker_groups]
}

run "gpus_as_a_resource" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, resources = { GPU = 8 } } }
  }
  expect_failures = [var.worker_groups]
}

run "a_resource_of_nothing" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, resources = { disk = 0 } } }
  }
  expect_failures = [var.worker_groups]
}

run "half_a_resource" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, resources = { disk = 1.5 } } }
  }
  expect_failures = [var.worker_groups]
}

run "a_label_with_a_blank" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, labels = { kind = "very fast" } } }
  }
  expect_failures = [var.worker_groups]
}

run "a_label_key_with_a_sign" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, labels = { "kind=" = "fast" } } }
  }
  expect_failures = [var.worker_groups]
}

run "a_label_of_ray" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, labels = { "ray.io/market-type" = "spot" } } }
  }
  expect_failures = [var.worker_groups]
}

run "more_efa_cards_than_any_type_has" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["p4d.24xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, efa_cards = 33, availability_zone = "us-east-1a" } }
  }
  expect_failures = [var.worker_groups]
}

run "efa_on_spot" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["p4d.24xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, efa_cards = 4, availability_zone = "us-east-1a", spot = true } }
  }
  expect_failures = [var.worker_groups]
}

run "efa_on_two_types" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["p4d.24xlarge", "p4de.24xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, efa_cards = 4, availability_zone = "us-east-1a" } }
  }
  expect_failures = [var.worker_groups]
}

run "efa_in_every_zone" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["p4d.24xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, efa_cards = 4 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_placement_group_in_every_zone" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, placement_group = true } }
  }
  expect_failures = [var.worker_groups]
}

run "a_placement_group_on_spot" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge", "c6i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, placement_group = true, spot = true, availability_zone = "us-east-1a" } }
  }
  expect_failures = [var.worker_groups]
}

run "a_reservation_by_name" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, capacity_reservation_id = "mine", availability_zone = "us-east-1a" } }
  }
  expect_failures = [var.worker_groups]
}

run "a_reservation_on_spot" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, capacity_reservation_id = "cr-0123456789abcdef0", spot = true } }
  }
  expect_failures = [var.worker_groups]
}

run "a_reservation_in_every_zone" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, capacity_reservation_id = "cr-0123456789abcdef0" } }
  }
  expect_failures = [var.worker_groups]
}

run "a_reservation_for_two_types" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge", "c6i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, capacity_reservation_id = "cr-0123456789abcdef0", availability_zone = "us-east-1a" } }
  }
  expect_failures = [var.worker_groups]
}

run "a_capacity_block_without_its_id" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, capacity_block = true } }
  }
  expect_failures = [var.worker_groups]
}

run "a_zone_outside_the_network" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, availability_zone = "us-east-1f" } }
  }
  expect_failures = [var.worker_groups]
}

run "spot_from_a_single_pool" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, spot = true, availability_zone = "us-east-1a" } }
  }
  expect_failures = [var.worker_groups]
}

run "a_volume_too_small" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, volume_gib = 8 } }
  }
  expect_failures = [var.worker_groups]
}

run "a_negative_price" {
  command = plan
  variables {
    worker_groups = { cpu = { instance_types = ["c7i.2xlarge"], ami_id = "ami-0123456789abcdef0", maximum = 4, cpus = 8, price_per_hour = -0.1 } }
  }
  expect_failures = [var.worker_groups]
}
