"""What tests and benchmarks share: servers as processes, a scripted runner, small GGUFs, llama-server beside ours."""
