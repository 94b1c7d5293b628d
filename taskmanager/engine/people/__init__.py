"""What people ask for: records, actions, workflows."""
