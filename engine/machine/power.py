"""Whether this machine runs on its battery. Light: imports no torch."""


def is_on_battery() -> bool:
    """False on the mains, without a battery, and where it cannot be known."""
    try:
        import psutil  # comes with the engine; a mere client of somebody else's engine has none
    except ImportError:
        return False
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return battery is not None and battery.power_plugged is False
